"""A scenario: something released, an attack on it, and what is claimed of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpmerge.audit.attacks import Attack
from dpmerge.audit.findings import Claim, Quantity

DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """`attack` and `claims` are made when asked for: listing scenarios costs nothing.

    `given` is the δ of claims about ε, or the ε of claims about δ.
    """

    name: str
    words: str  # one sentence: what is released, and what the attacker does
    attack: Callable[[], Attack]
    claims: Callable[[], tuple[Claim, ...]]
    quantity: Quantity = "epsilon"
    given: float = DELTA
    trials: int = 1_000_000
    note: str = ""  # what else is shown by it, such as an exact value
