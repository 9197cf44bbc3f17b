"""Merging again, to see that it gives the same bytes.

Guarantees: an output is called rebuilt only if every file it is certified for comes out byte for byte. Which candidate
was drawn is not asked for: whichever gives the bytes is the one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from dpmerge.certificate.checks import Check, Verification
from dpmerge.errors import DpmergeError
from dpmerge.merging.recipe_files import build
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.private_home import private_folder
from dpmerge.remote.remote_path import is_url
from dpmerge.terms.candidate_terms import CandidateTerms


def rebuilt(verification: Verification, portfolio: Portfolio, *, jobs: int = 2) -> Check:
    """Merge what the certificate says and compare; None where release noise makes that impossible."""
    declared = verification.declared
    if declared is None:
        return Check("rebuild", None, ("the certificate cannot be read",))
    candidates = declared.terms.candidates
    chosen = candidates if declared.drawn is None else [candidates[declared.drawn]]
    noisy = [each for each in chosen if each.release_noise > 0]
    reasons = []
    for each in chosen:
        if each.release_noise == 0:
            wrong = _compared(portfolio, each, verification, jobs)
            if wrong is None:
                return Check("rebuild", True, (f"made again from {each.recipe}: the same bytes",))
            reasons.append(wrong)
    if noisy:
        words = "release noise was added, and it was never written down: nobody can make these bytes again"
        return Check("rebuild", None, (words,))
    return Check("rebuild", False, tuple(reasons))


def _compared(portfolio: Portfolio, candidate: CandidateTerms, verification: Verification, jobs: int) -> str | None:
    assert verification.declared is not None
    beside = private_folder() if is_url(verification.path) else verification.path.absolute().parent
    with tempfile.TemporaryDirectory(prefix="dpmerge-rebuild-", dir=beside) as folder:
        try:
            built = build(
                portfolio,
                candidate.recipe,
                Path(folder),
                donor=verification.declared.donor,
                jobs=jobs,
                adapters=verification.declared.adapters,
            )
        except DpmergeError as error:
            return f"{candidate.recipe}: {error}"
        made: Mapping[str, str] = {file.name: file.sha256 for file in built.files}
    differing = sorted(name for name in {*made, *verification.files} if made.get(name) != verification.files.get(name))
    return f"{candidate.recipe}: {', '.join(differing)} came out differently" if differing else None
