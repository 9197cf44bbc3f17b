"""The errors dpmerge raises, as one tree.

    DpmergeError
    ├── InvalidInput           a value that is wrong: which one, what it was, what is accepted (also a ValueError)
    │   ├── PortfolioError     something wrong in a file of a portfolio: which file, which field
    │   │   ├── BadManifest        privacy.json or portfolio.yaml is not what it should be
    │   │   ├── UnsafePath         a file name that leads out of the run's folder
    │   │   ├── PickleRefused      weights in a format that can run code
    │   │   ├── BadCheckpoint      a safetensors file that is broken, ambiguous or not finite
    │   │   ├── DigestMismatch     a file is not the one that was recorded
    │   │   ├── MixedPortfolio     runs on different data, units or adjacencies, or two runs with one name
    │   │   ├── TensorMismatch     models of different names, shapes or dtypes
    │   │   ├── NotIndependent     runs that share their noise
    │   │   ├── MissingParent      a run that started from a private one that is not there
    │   │   ├── NotCombinable      runs that can be selected from but not averaged
    │   │   └── PrivateMetric      a metric that must not be used for planning
    │   └── CannotWrite        an output that cannot be written, or is already there; nothing of it was
    ├── NoGuarantee            a fair question to which no theorem gives a finite answer
    │   ├── DeltaOutOfReach        δ is below what floating-point accounting can promise
    │   ├── TargetOutOfReach       no release of this portfolio meets the target (the command line exits with 1)
    │   ├── CapExceeded            a release that would pass the cap on its data; nothing was charged
    │   └── RunsLocked             a release of runs that a final release has locked, or a final one of runs seen before
    ├── LedgerError            a ledger that cannot be opened, read or written
    │   └── LedgerBroken           its chain of entries does not hold, or entries are missing that are known to exist
    ├── EvaluationFailed       an evaluator that gave no finite number for a merge: which merge, what happened
    └── CannotRecord           a training loop whose privacy cannot be recorded truthfully

A message is one line of printable characters. It names the field, the value found there and what would be accepted.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any


class DpmergeError(Exception):
    """Base of everything raised on purpose."""

    def __str__(self) -> str:
        return printable(super().__str__())


class InvalidInput(DpmergeError, ValueError):
    """A value outside its domain; nothing was computed from it.

    `found` says in words what stood there, where the value itself would say too little or too much.
    """

    def __init__(self, field: str, value: object, accepted: str, *, found: str | None = None) -> None:
        self.field = field
        self.value = value
        self.accepted = accepted
        self.found = found
        shown = _shown(value) if found is None else found
        super().__init__(f"{_shortened(field)}: got {shown}; accepted: {accepted}")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), found=self.found), (self.field, self.value, self.accepted)

    def within(self, place: str) -> InvalidInput:
        """The same error, its field named from further out."""
        return InvalidInput(f"{place}.{self.field}", self.value, self.accepted, found=self.found)


class PortfolioError(InvalidInput):
    """A portfolio that cannot be used as it stands; `file` is where to look, `field` what to look at there."""

    def __init__(self, file: object, field: str, value: object, accepted: str, *, found: str | None = None) -> None:
        self.file = str(file)
        super().__init__(field, value, accepted, found=found)
        self.args = (f"{self.file}: {self.args[0]}",)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), found=self.found), (self.file, self.field, self.value, self.accepted)


class BadManifest(PortfolioError):
    """A manifest that cannot be read, is incomplete or contradicts itself."""

    @classmethod
    def of(cls, file: object, error: InvalidInput) -> BadManifest:
        """The same complaint, with the file it is about."""
        return cls(file, error.field, error.value, error.accepted, found=error.found)


class UnsafePath(PortfolioError):
    """A file name that is not a plain relative path inside the run's folder."""


class PickleRefused(PortfolioError):
    """Weights stored as a pickle, which is a program."""


class BadCheckpoint(PortfolioError):
    """A safetensors file that is broken, ambiguous, or holds values that are not finite."""


class DigestMismatch(PortfolioError):
    """The file is not the one that was recorded."""


class MixedPortfolio(PortfolioError):
    """Runs that do not speak about the same thing: dataset, unit, adjacency, or two runs with one name."""


class TensorMismatch(PortfolioError):
    """Models whose tensors differ in name, shape or dtype."""


class NotIndependent(PortfolioError):
    """Two runs with the same noise."""


class MissingParent(PortfolioError):
    """A run that started from a privately trained checkpoint which is not in the portfolio."""


class NotCombinable(PortfolioError):
    """Models that must not be averaged: they started from, or keep frozen, different weights."""


class PrivateMetric(PortfolioError):
    """A metric measured on private data: choosing by it is a release nobody has paid for."""


class CannotRecord(DpmergeError):
    """A training loop whose privacy cannot be recorded truthfully; raised before the step it concerns is taken."""


class EvaluationFailed(DpmergeError):
    """An evaluator raised, or returned something that is no finite number."""

    def __init__(self, recipe: str, found: str, accepted: str = "a finite number") -> None:
        self.recipe = recipe
        self.found = found
        self.accepted = accepted
        shown = _shortened(" ".join(found.split()))
        super().__init__(f"evaluation of {_shortened(recipe)}: got {shown}; accepted: {accepted}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.recipe, self.found, self.accepted)


class NoGuarantee(DpmergeError):
    """No proof covers what was asked, so there is no number."""


class DeltaOutOfReach(NoGuarantee):
    """δ lies below the floor under which a convolved privacy loss distribution cannot be trusted."""

    def __init__(self, delta: float, floor: float) -> None:
        self.delta = delta
        self.floor = floor
        super().__init__(
            f"delta: got {delta:g}; accepted: at least {floor:.3g} where subsampled steps are composed "
            "numerically (below that, rounding errors could make the result too small)"
        )


class TargetOutOfReach(NoGuarantee):
    """No plan meets the target; `smallest` is the least ε that some candidate reaches, and `candidate` which."""

    def __init__(self, epsilon: float, delta: float, smallest: float, candidate: str, hint: str = "") -> None:
        self.epsilon, self.delta, self.smallest, self.candidate, self.hint = epsilon, delta, smallest, candidate, hint
        least = math.nextafter(float(f"{smallest:.6g}") * (1 + 1e-5), math.inf) if math.isfinite(smallest) else smallest
        super().__init__(
            f"epsilon: got {epsilon:g} at delta {delta:g}; accepted: at least {least:.6g}, which "
            f"{_shortened(candidate)} reaches{'; ' + hint if hint else ''}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.epsilon, self.delta, self.smallest, self.candidate, self.hint)


class CapExceeded(NoGuarantee):
    """A release that the rule guarding a cap does not allow; nothing was charged or written."""


class RunsLocked(NoGuarantee):
    """A final release holds only if nothing else of its runs is ever released, before or after."""


class LedgerError(DpmergeError):
    """A ledger that cannot be opened, read or written."""


class LedgerBroken(LedgerError):
    """Entries were changed, removed or lost: what has left the building is not known."""


class CannotWrite(InvalidInput):
    """An output that cannot be written, or that is there already; what was there is as it was."""


def note_charge(error: BaseException, words: str) -> None:
    """Say with an error, whatever it is, that a release stays charged: it never ends as if nothing had happened."""
    error.add_note(words)
    error.__dict__["charged"] = True


def is_charged(error: BaseException) -> bool:
    """Whether a release stays charged although this was raised."""
    return "charged" in error.__dict__


def _shown(value: object) -> str:
    try:
        return _shortened(repr(value), 80)
    except RecursionError:
        return "a value nested too deeply"


def _shortened(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """Text of strangers as one line that shows every character it has.

    What comes from a file may hold anything: line breaks that begin a line of ours, bytes that a terminal obeys,
    characters that turn the text round or cannot be seen.

    >>> printable("a\\n✓ signature")
    'a\\\\n✓ signature'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
