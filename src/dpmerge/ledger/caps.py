"""Caps: a promise (ε, δ) on everything ever released of one data set, and the privacy filter that keeps it.

Guarantees: a cap says what its filter needs, and nothing is filled in later: the ceiling with the statements that price
it, or the one Rényi order that was fixed beforehand.
Refuses: a filter's fields given to another filter, an order at which nothing would be left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.gaussian import gaussian_epsilon, largest_mu
from dpmerge.accounting.renyi import DEFAULT_ORDERS, renyi_penalty
from dpmerge.errors import InvalidInputError
from dpmerge.ledger.identity import identity_of, noise_mark
from dpmerge.portfolio.manifest import Manifest
from dpmerge.terms.run_record import RunRecord

Rule = Literal["ceiling", "gaussian_filter", "renyi_filter"]

MARGIN = 1e-12
"""Relative. Sums of a few thousand products err by less; a comparison is made on the safe side of it."""


@dataclass(frozen=True, kw_only=True)
class Cap:
    """(ε, δ) and its privacy filter (`rule`, its name in the ledger's entries).

    For a ceiling: identity → last step, and what those runs and their ancestors state.
    """

    epsilon: float
    delta: float
    rule: Rule = "ceiling"
    ceiling: Mapping[str, int] = field(default_factory=dict)
    statements: Mapping[str, RunRecord] = field(default_factory=dict)
    marks: Mapping[str, str | None] = field(default_factory=dict)
    order: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validation.non_negative("cap.epsilon", self.epsilon))
        object.__setattr__(self, "delta", validation.delta("cap.delta", self.delta))
        if self.rule not in get_args(Rule):
            raise InvalidInputError("cap.privacy_filter", self.rule, ", ".join(get_args(Rule)))
        if (self.rule == "ceiling") != bool(self.ceiling):
            accepted = "the last step of each run under the privacy filter ceiling, and nothing under another"
            raise InvalidInputError("cap.ceiling", dict(self.ceiling), accepted)
        if missing := sorted(set(self.ceiling) - set(self.statements)):
            raise InvalidInputError("cap.statements", missing, "what every run of the ceiling states")
        if self.order is not None:
            if self.rule != "renyi_filter":
                raise InvalidInputError(
                    "cap.order", self.order, "left out, except under the privacy filter renyi_filter"
                )
            validation.orders("cap.order", [self.order])
        if self.rule == "renyi_filter":
            fixed = best_order(self.epsilon, self.delta) if self.order is None else float(self.order)
            object.__setattr__(self, "order", fixed)
            renyi_budget(self.epsilon, self.delta, fixed)

    @classmethod
    def of_manifests(cls, epsilon: float, delta: float, steps: Mapping[str, int], manifests: Iterable[Manifest]) -> Cap:
        """A ceiling over runs of a portfolio: run name → the last step that may ever be looked at."""
        by_name = {manifest.run: manifest for manifest in manifests}
        if unknown := [name for name in steps if name not in by_name]:
            raise InvalidInputError("cap.ceiling", unknown, f"runs of the portfolio: {', '.join(by_name)}")
        by_identity = {identity_of(manifest): manifest for manifest in by_name.values()}
        return cls(
            epsilon=epsilon,
            delta=delta,
            rule="ceiling",
            ceiling={identity_of(by_name[name]): step for name, step in steps.items()},
            statements={identity: manifest.statement for identity, manifest in by_identity.items()},
            marks={identity: noise_mark(manifest) for identity, manifest in by_identity.items()},
        )


def renyi_budget(epsilon: float, delta: float, order: float) -> float:
    """How much Rényi divergence of one order may be spent so that (ε, δ) follows, rounded down."""
    penalty = float(renyi_penalty(np.array([order]), delta, "improved")[0])
    budget = epsilon - penalty - MARGIN * (epsilon + abs(penalty))
    if not budget > 0:
        accepted = f"an order at which something is left; {best_order(epsilon, delta):g} is the best for a Gaussian"
        raise InvalidInputError("cap.order", order, accepted)
    return budget


def gaussian_budget(epsilon: float, delta: float) -> float:
    """The largest μ² that implies (ε, δ)."""
    mu = largest_mu(epsilon, delta)
    return mu * mu


def room(limit: float, spent: float, delta: float) -> float:
    """The ε, about, that is left of a budget of μ²: for a person to read, and not what anything is decided by."""
    return float(gaussian_epsilon(math.sqrt(max(0.0, limit - spent)), delta))


def best_order(epsilon: float, delta: float) -> float:
    """The order whose conversion is best for the Gaussian that fits the cap exactly."""
    converted = DEFAULT_ORDERS * gaussian_budget(epsilon, delta) / 2 + renyi_penalty(DEFAULT_ORDERS, delta, "improved")
    best = float(DEFAULT_ORDERS[int(np.argmin(converted))])
    return best if math.isfinite(best) else 2.0
