"""Was it made from these runs? A certificate beside the portfolio it speaks of.

Guarantees: manifests that state something else, commitments that do not open, checkpoints that are no longer what was
committed to, and a binding that is not of these terms and files are each named.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator

from dpmerge.certificate.checks import Check
from dpmerge.certificate.commitments import release_salt
from dpmerge.certificate.dsse import Certificate
from dpmerge.certificate.output_files import require_plausible
from dpmerge.certificate.predicate import Predicate
from dpmerge.errors import InvalidInputError
from dpmerge.files import feed_file, file_size
from dpmerge.portfolio.digest_pairs import remember_pair
from dpmerge.portfolio.file_digests import FileHash, mismatch
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import SavedCheckpoint
from dpmerge.portfolio.trained_tensors import differently_trained
from dpmerge.releasing.commitment_salt import checkpoint_commitment, salt_of
from dpmerge.releasing.settings import portfolio_facts
from dpmerge.terms.noise_groups import groups_among


def provenance(certificate: Certificate, declared: Predicate, portfolio: Portfolio) -> Iterator[Check]:
    """Whether a release was made from the runs of a portfolio, by who has its salt."""
    terms = declared.terms
    wrong = []
    subject = {"dataset": portfolio.dataset, "unit": portfolio.unit, "adjacency": portfolio.adjacency.value}
    for name, value in subject.items():
        if getattr(terms, name) != value:
            wrong.append(f"{name} is {getattr(terms, name)!r} in the certificate and {value!r} in the portfolio")
    known = {run.id: run for run in portfolio.runs}
    for stated in terms.runs:
        if stated.run not in known:
            wrong.append(f"run {stated.run} is not in the portfolio")
        elif known[stated.run].manifest.statement != stated:
            wrong.append(f"the manifest of {stated.run} says something else")
    for candidate in terms.candidates:
        runs = [known[run] for run in dict.fromkeys(part.run for part in candidate.parts) if run in known]
        if candidate.is_final and (reason := differently_trained(runs)) is not None:
            wrong.append(f"{candidate.theorem} does not cover {candidate.recipe}: {reason.problem}")
    stated_groups = [group for group in terms.noise_groups or () if len(group) > 1]
    found = groups_among({each.run: known[each.run].mechanism for each in terms.runs if each.run in known})
    if stated_groups != [group for group in found or () if len(group) > 1]:
        wrong.append("which runs share a noise seed is something else by their manifests")
    if not wrong and portfolio_facts(portfolio, terms, declared.adapters) != declared.portfolio:
        wrong.append("what is said of the portfolio as a whole (complete, allowed differences) is something else")
    yield Check("manifests", not wrong, tuple(wrong))
    try:
        salt = release_salt(salt_of(portfolio), declared.release)
    except InvalidInputError as error:
        yield Check("commitments", False, (str(error),))
        return
    yield _commitments(declared, portfolio, salt)
    if certificate.version > 1:
        yield _binding(certificate, declared, salt)


def _binding(certificate: Certificate, declared: Predicate, salt: bytes) -> Check:
    stated, found = declared.binding or "", declared.binding_of(certificate.subjects, salt, certificate.version)
    words = "not of these terms and files: something was changed by who does not have the portfolio's salt"
    return Check("binding", same := hmac.compare_digest(stated, found), () if same else (words,))


def _commitments(declared: Predicate, portfolio: Portfolio, salt: bytes) -> Check:
    wrong = []
    for each in declared.inputs:
        try:
            opened = checkpoint_commitment(portfolio, each.checkpoint, salt) == each.commitment
        except InvalidInputError:
            opened = False
        if not opened:
            wrong.append(f"that of {each.checkpoint} does not open to what the portfolio holds")
        else:
            wrong += _changed(portfolio.saved(str(each.checkpoint)))
    return Check("commitments", not wrong, tuple(wrong))


def _changed(saved: SavedCheckpoint) -> Iterator[str]:
    """Files of a checkpoint that are no longer what was recorded, and committed to, by every digest there is."""
    for file in saved.files:
        digest, recorded = FileHash(), saved.digests_of(file)
        try:
            require_plausible(file, file_size(file))
            feed_file(file, digest.update)
        except OSError:
            yield f"{saved.name}: {file.name} is not the file that was recorded"
            continue
        if (wrong := mismatch(found := digest.digests(), recorded)) is not None:
            yield f"{saved.name}: {file.name} is not the file that was recorded: it {wrong.words}"
        else:
            remember_pair(found)
