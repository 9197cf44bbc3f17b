"""Every accounting dpmerge knows, side by side: what `dpmerge account` shows.

Guarantees: a number is given only where there is a formula for it (else None), and `certifies` says whether it is a
proof for these runs. The paper's numbers appear whether or not they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpmerge.accounting.combination import THEOREMS, Bound, LinearCombination, tightest
from dpmerge.accounting.exposure import Mechanism
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.accounting.random_selection import SelectionProfile
from dpmerge.accounting.renyi import DEFAULT_ORDERS, RenyiProfile
from dpmerge.accounting.validation import Array
from dpmerge.errors import NoGuaranteeError

SHOWN_THEOREMS = ("joint_release", "last_step", "merged_trajectory", "merged_trajectory_prepended", "hidden_state")


@dataclass(frozen=True)
class Figures:
    """One profile in numbers; None where there is no formula."""

    mu: float | None
    epsilon: float | None
    epsilon_rdp_classic: float | None
    epsilon_rdp_improved: float | None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every accounting of some runs, side by side; None for a selection or combination that was not asked for."""

    runs: tuple[Mechanism, ...]
    delta: float
    single: tuple[Figures, ...]
    selection: Figures | None
    combination: dict[str, tuple[Bound, Figures]] | None
    best: tuple[Bound, float] | None


def compare(
    runs: Sequence[Mechanism],
    delta: float,
    *,
    probabilities: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    release_noise: float = 0.0,
    shared_affine: str | None = None,
    orders: Array = DEFAULT_ORDERS,
) -> Comparison:
    """What each run costs, and a random selection or a linear combination of them (theory 1).

    Args:
        runs: The runs, released with all their iterates where each is accounted for by itself.
        delta: The δ at which every ε is given.
        probabilities: Of drawing each run, to account for a random selection.
        weights: Of each run, to account for a linear combination by every theorem.
        release_noise: Standard deviation of the noise added to each merged weight.
        shared_affine: Who vouches that all runs share one affine update map, if anybody does.
        orders: The Rényi orders used.

    Returns:
        Figures by privacy loss distribution and by Rényi divergence; the tightest bound that is proved for these runs.

    Raises:
        InvalidInputError: A bad value, or vectors that do not match the runs.
        DeltaOutOfReachError: δ is below what a convolved privacy loss distribution can promise.

    >>> from dpmerge.accounting import Adjacency, DpSgd, StepBlock
    >>> runs = [
    ...     DpSgd(
    ...         blocks=[StepBlock(steps=20, noise_multiplier=noise, clip_norm=2, learning_rate=4)],
    ...         adjacency=Adjacency.REPLACE_ONE,
    ...     )
    ...     for noise in (32, 64)
    ... ]
    >>> found = compare(runs, 1e-5, probabilities=[0.5, 0.5], weights=[0.5, 0.5])
    >>> [round(figures.epsilon, 4) for figures in found.single], round(found.selection.epsilon, 4)
    ([1.0471, 0.4906], 0.9984)
    >>> found.best[0].theorem, round(found.best[1], 4)
    ('last_step', 1.172)
    """
    profiles = [_own_profile(run) for run in runs]
    selection = None
    if probabilities is not None:
        selection = _figures(_selection(profiles, probabilities), delta, orders)
    combination, best = None, None
    if weights is not None:
        merge = LinearCombination.of_runs(runs, weights, release_noise=release_noise, shared_affine=shared_affine)
        bounds = {name: theorem(merge) for name, theorem in THEOREMS.items()}
        combination = {name: (bounds[name], _figures(bounds[name].profile, delta, orders)) for name in SHOWN_THEOREMS}
        best = tightest(list(bounds.values()), delta)
    return Comparison(
        runs=tuple(runs),
        delta=delta,
        single=tuple(_figures(profile, delta, orders) for profile in profiles),
        selection=selection,
        combination=combination,
        best=best,
    )


def _own_profile(run: Mechanism) -> PrivacyProfile | NoGuaranteeError:
    try:
        return run.profile()
    except NoGuaranteeError as reason:
        return reason


def _selection(
    profiles: Sequence[PrivacyProfile | NoGuaranteeError], probabilities: Sequence[float]
) -> PrivacyProfile | NoGuaranteeError:
    members: list[PrivacyProfile] = []
    chosen = [p for p in probabilities if p > 0]
    for profile, probability in zip(profiles, probabilities, strict=True):
        if probability > 0:
            if isinstance(profile, NoGuaranteeError):
                return profile
            members.append(profile)
    return SelectionProfile(tuple(members), tuple(p / sum(chosen) for p in chosen))


def _figures(profile: PrivacyProfile | NoGuaranteeError | None, delta: float, orders: Array) -> Figures:
    if profile is None or isinstance(profile, NoGuaranteeError):
        return Figures(None, None, None, None, None if profile is None else str(profile))
    curve_values = profile.renyi_divergence(orders)
    curve = None if curve_values is None else RenyiProfile(orders, curve_values)
    return Figures(
        mu=profile.mu if isinstance(profile, GaussianProfile) else None,
        epsilon=profile.epsilon(delta),
        epsilon_rdp_classic=None if curve is None else curve.converted("classic").epsilon(delta),
        epsilon_rdp_improved=None if curve is None else curve.epsilon(delta),
    )
