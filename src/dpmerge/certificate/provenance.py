"""Was it made from these runs? A certificate beside the portfolio it speaks of.

Guarantees: manifests that state something else, commitments that do not open, and checkpoints that are no longer what
was committed to are each named.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpmerge.certificate.checks import Check, file_digest
from dpmerge.certificate.commitments import commitment, release_salt, salt_of
from dpmerge.certificate.predicate import Declared, PortfolioFacts
from dpmerge.errors import InvalidInput
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.runs import SavedCheckpoint


def provenance(declared: Declared, portfolio: Portfolio) -> Iterator[Check]:
    """Whether a release was made from the runs of a portfolio."""
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
    if not wrong and PortfolioFacts.of(portfolio, terms) != declared.portfolio:
        wrong.append("what is said of the portfolio as a whole (complete, allowed differences) is something else")
    yield Check("manifests", not wrong, tuple(wrong))
    yield _commitments(declared, portfolio)


def _commitments(declared: Declared, portfolio: Portfolio) -> Check:
    try:
        salt = release_salt(salt_of(portfolio), declared.release)
    except InvalidInput as error:
        return Check("commitments", False, (str(error),))
    wrong = []
    for each in declared.inputs:
        try:
            opened = commitment(portfolio, each.run, each.step, salt) == each.commitment
        except InvalidInput:
            opened = False
        if not opened:
            wrong.append(f"that of {each.run}@{each.step} does not open to what the portfolio holds")
        else:
            wrong += _changed(portfolio.saved(f"{each.run}@{each.step}"))
    return Check("commitments", not wrong, tuple(wrong))


def _changed(saved: SavedCheckpoint) -> Iterator[str]:
    """Files of a checkpoint that are no longer what was recorded, and committed to."""
    for file, recorded in zip(saved.files, saved.file_digests, strict=True):
        try:
            same = file_digest(file) == recorded
        except OSError:
            same = False
        if not same:
            yield f"{saved.name}: {file.name} is not the file that was recorded"
