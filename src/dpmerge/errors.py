"""The errors dpmerge raises, as one tree.

    DpmergeError
    ├── InvalidInput       a value that is wrong: which one, what it was, what is accepted (also a ValueError)
    └── NoGuarantee        a fair question to which no theorem gives a finite answer
        └── DeltaOutOfReach    δ is below what floating-point accounting can promise

A message is one line. It names the field, the value found there and what would be accepted instead.
"""

from __future__ import annotations


class DpmergeError(Exception):
    """Base of everything raised on purpose."""


class InvalidInput(DpmergeError, ValueError):
    """A value outside its domain; nothing was computed from it.

    `found` says in words what stood there, where the value itself would say too little or too much.
    """

    def __init__(self, field: str, value: object, accepted: str, *, found: str | None = None) -> None:
        self.field = field
        self.value = value
        self.accepted = accepted
        self.found = found
        super().__init__(f"{field}: got {_shown(value) if found is None else found}; accepted: {accepted}")

    def within(self, place: str) -> InvalidInput:
        """The same error, its field named from further out."""
        return InvalidInput(f"{place}.{self.field}", self.value, self.accepted, found=self.found)


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


def _shown(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
