"""An alarm is confirmed: where a claim seems violated, the attack is made again on fresh trials.

Guarantees: what is reported is the smaller of both bounds, so it holds with the confidence of one; a claim that is
exactly true is called violated only if two independent attacks are both too lucky, once in 400 audits at 95 %. A claim
that is false by more than chance is violated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from dpmerge.auditing.findings import Claim, Estimate

FRESH = 2**32
"""Added to a seed; seeds are below it, so that no other audit draws these trials."""


def confirmed(attacked: Callable[[int], Estimate], claims: Iterable[Claim], seed: int) -> Estimate:
    """What an attack shows with this seed; if that is above any of the claims, no more than it shows with another."""
    first = attacked(seed)
    values = [claim.value for claim in claims if claim.value is not None]
    if not values or first.bound <= min(values):
        return first
    again = attacked(seed + FRESH)
    return replace(min(first, again, key=lambda estimate: estimate.bound), attacks=2)
