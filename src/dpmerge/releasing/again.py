"""A request that was made before, by its key: the release it was, not one planned anew.

Guarantees: asked again with the same key, in the same words, the terms are those that were charged, though a plan made
now could be another (it depends on what the ledger leaves: locks, a ceiling).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpmerge.ledger.entries import Book
from dpmerge.ledger.ledger import Ledger
from dpmerge.planning.planned import Planned
from dpmerge.planning.target import Guarantee
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.order import Order


def asked_before(
    portfolio: Portfolio,
    where: str | Path,
    request_key: str | None,
    asked: Mapping[str, str],
    insecure_permissions: bool = False,
) -> Planned | None:
    """What was charged for this key, if it was asked for in the same words."""
    if request_key is None or (isinstance(where, Path) and not where.exists()):
        return None
    with Ledger.open(where, insecure_permissions=insecure_permissions) as ledger:
        known = ledger.by_key(Book(portfolio.dataset, portfolio.unit, portfolio.adjacency.value), request_key)
    if known is None:
        return None
    order = Order.read(known.details)
    if order.asked != dict(asked):
        return None
    target = Guarantee(epsilon=order.target.epsilon, delta=order.target.delta)
    return Planned(portfolio, known.terms, target, order.asked)
