"""Several mechanisms released together: the exact composition, and the textbook bounds it is compared with.

Guarantees: `compose` bounds the joint release of independent mechanisms, each in its own most exact form: Gaussian
parts add in closed form, subsampled steps as one multiset, known atoms by convolution, Rényi curves by addition.
Refuses: nothing that is a profile. A non-private member makes everything non-private.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.discrete import DiscreteProfile, ShiftedProfile
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.loss_distribution import LossDistributionProfile
from dpmerge.accounting.profile import NonPrivateProfile, PrivacyProfile
from dpmerge.accounting.random_selection import SelectionProfile
from dpmerge.accounting.renyi import RenyiProfile
from dpmerge.accounting.step_mechanisms import HOPELESS_RATIO, GaussianStep, Step
from dpmerge.errors import NoGuaranteeError


def compose(profiles: Iterable[PrivacyProfile]) -> PrivacyProfile:
    """The profile of releasing all of them (theory 1).

    Args:
        profiles: Of mechanisms whose randomness is independent; of none, perfect privacy.

    Returns:
        The joint profile, in its most exact form.

    Raises:
        NoGuaranteeError: A member known by its Rényi curve only, beside steps that have none.
        InvalidInputError: Something that is not a profile.

    >>> compose([GaussianProfile(3.0), GaussianProfile(4.0)])
    GaussianProfile(mu=5.0)
    """
    profiles = list(profiles)
    for position, profile in enumerate(profiles):
        validation.instance(f"profiles[{position}]", profile, PrivacyProfile, "a profile, such as run.profile()")
    for position, profile in enumerate(profiles):
        if isinstance(profile, SelectionProfile):  # the index may be public: compose under each outcome
            others = [*profiles[:position], *profiles[position + 1 :]]
            return SelectionProfile(
                tuple(compose([member, *others]) for member in profile.members), profile.probabilities
            )
    parts = [part for profile in profiles for part in _parts(profile)]
    if any(isinstance(part, NonPrivateProfile) for part in parts):
        return NonPrivateProfile()
    atoms = [part for part in parts if isinstance(part, DiscreteProfile)]
    base = _compose_continuous([part for part in parts if not isinstance(part, DiscreteProfile)])
    if not atoms:
        return base
    joint = reduce(DiscreteProfile.convolved, atoms)
    return joint if base == GaussianProfile(0.0) else ShiftedProfile(joint, base)


def _parts(profile: PrivacyProfile) -> list[PrivacyProfile]:
    return [profile.atoms, profile.base] if isinstance(profile, ShiftedProfile) else [profile]


def _compose_continuous(parts: list[PrivacyProfile]) -> PrivacyProfile:
    curves = [part for part in parts if isinstance(part, RenyiProfile)]
    if curves:
        return _compose_renyi(curves, [part for part in parts if not isinstance(part, RenyiProfile)])
    mu = float(np.sqrt(sum(part.mu * part.mu for part in parts if isinstance(part, GaussianProfile))))
    steps: Counter[Step] = Counter()
    for part in parts:
        if isinstance(part, LossDistributionProfile):
            steps.update(dict(part.steps))
        elif not isinstance(part, GaussianProfile):
            raise TypeError(f"cannot compose a {type(part).__name__}")
    if not steps:
        return GaussianProfile(mu)
    if mu > HOPELESS_RATIO:
        return NonPrivateProfile()
    if mu > 0:
        steps[GaussianStep(mu)] += 1
    return LossDistributionProfile.of(steps)


def _compose_renyi(curves: list[RenyiProfile], exact: list[PrivacyProfile]) -> RenyiProfile:
    """Where one member is known by its Rényi curve only, all are added as curves, on the orders it has."""
    orders = curves[0].orders
    total = np.zeros_like(orders)
    for part in [*curves, *exact]:
        values = part.renyi_divergence(orders)
        if values is None:
            raise NoGuaranteeError(
                "a model known by its Rényi curve only cannot be composed with Poisson-subsampled steps under "
                "replace_one: no Rényi curve is known for those; give that model's delta(epsilon) table instead"
            )
        total = total + values
    return RenyiProfile(orders, total, conversion=curves[0].conversion)


def basic_composition(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(Σ ε_i, Σ δ_i): holds for anything (Dwork et al. 2006).

    Args:
        pairs: (ε, δ) of each release.

    Returns:
        (ε, δ) of all of them.

    Raises:
        InvalidInputError: ε < 0 or δ outside [0, 1].

    >>> basic_composition([(0.5, 1e-6), (0.25, 1e-6)])
    (0.75, 2e-06)
    """
    checked = _pairs(pairs)
    return sum(epsilon for epsilon, _ in checked), min(1.0, sum(delta for _, delta in checked))


def advanced_composition(epsilon: float, delta: float, count: int, delta_slack: float) -> tuple[float, float]:
    """ε√(2N log(1/δ₀)) + Nε(e^ε − 1) at Nδ + δ₀ (Dwork, Rothblum, Vadhan 2010, Theorem III.3).

    Args:
        epsilon: Of each release.
        delta: Of each release.
        count: How many releases, N.
        delta_slack: δ₀, what is given up for the smaller ε.

    Returns:
        (ε, δ) of all of them.

    Raises:
        InvalidInputError: A value outside its domain.

    >>> advanced_composition(0.2, 1e-6, 20, 1e-6)
    (5.587187033594279, 2.1e-05)
    """
    [(epsilon, delta)] = _pairs([(epsilon, delta)])
    count = validation.integer("count", count, least=1)
    validation.delta("delta_slack", delta_slack)
    composed = epsilon * np.sqrt(2 * count * np.log(1 / delta_slack)) + count * epsilon * np.expm1(epsilon)
    return float(composed), count * delta + delta_slack


def optimal_composition(pairs: Sequence[tuple[float, float]], delta: float) -> float:
    """The best ε at δ that follows from the pairs alone (Kairouz, Oh, Viswanath 2015; unequal pairs exactly).

    Each pair is replaced by the randomised response that dominates it; their losses are convolved without
    rounding up to 2^15 distinct sums and rounded up beyond.

    Args:
        pairs: (ε, δ) of each release.
        delta: The δ to give ε at.

    Returns:
        ε of all of them at δ.

    Raises:
        InvalidInputError: A value outside its domain.

    >>> round(optimal_composition([(0.2, 1e-6)] * 20, 2.1e-5), 4)
    3.8294
    """
    return compose(DiscreteProfile.from_points([pair]) for pair in _pairs(pairs)).epsilon(delta)


def _pairs(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [
        (validation.non_negative("epsilon", epsilon), validation.fraction("delta", delta, zero=True))
        for epsilon, delta in pairs
    ]
