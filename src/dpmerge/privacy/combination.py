"""Linear combination of models: four theorems, each with its premises as data.

Guarantees: a `Bound` certifies only when its profile is proved and every premise holds over the support (the runs
of positive weight). `tightest` picks among those alone.
Refuses (a Bound without a profile): what a theorem has no formula for, with the failing premise named.

θ = Σ λ_i θ_i, λ in the simplex, noise independent between runs:
  joint_release      everything the support's prefixes contain; any optimizer, any sampling, any merge rule
  last_step          joint release up to the last update, which is merged before it is seen
  merged_trajectory  the paper's accounting; a proof only if updates are bounded for any two hidden states
  hidden_state       smooth models of which nothing but the (noised) merged model is ever released
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dpmerge.errors import InvalidInput, NoGuarantee
from dpmerge.privacy import domain
from dpmerge.privacy.composition import compose
from dpmerge.privacy.exposure import Adjacency, Checkpoint, Exposure, Mechanism, common_adjacency
from dpmerge.privacy.gaussian import GaussianProfile
from dpmerge.privacy.hidden_state import best_shifts, priced
from dpmerge.privacy.loss_distribution import LossDistributionProfile
from dpmerge.privacy.mechanisms import DpSgd, Sampling
from dpmerge.privacy.premises import (
    NoisyRun,
    Premise,
    bounded_update,
    common_premises,
    full_batch,
    hidden_state_premises,
    linear_last_update,
    noise_on_the_weights,
    one_step,
    only_release,
    separate_runs,
    whole_update_clipped,
)
from dpmerge.privacy.profile import NonPrivateProfile, PrivacyProfile
from dpmerge.privacy.steps import HOPELESS_RATIO, MixtureStep
from dpmerge.privacy.weightings import Alignment, chains, last_step_formula, merged_trajectory_formula

MOST_SAMPLED_RUNS = 6
"""Poisson runs in one merged step: their mixture has 2^n components, each further run doubles the time."""


@dataclass(frozen=True, kw_only=True)
class LinearCombination:
    """Σ λ_i θ_i over checkpoints, plus Gaussian release noise of standard deviation τ.

    τ is on the scale of the weights: one step's noise is effective rate × clip norm × noise multiplier.
    `shared_affine` names who vouches that all runs share one affine update map, or is None if nobody does.
    """

    checkpoints: Sequence[Checkpoint]
    weights: Sequence[float]
    release_noise: float = 0.0
    shared_affine: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoints", tuple(self.checkpoints))
        for position, checkpoint in enumerate(self.checkpoints):
            domain.instance(f"checkpoints[{position}]", checkpoint, Checkpoint, "a Checkpoint (of_runs takes runs)")
        if not self.checkpoints:
            raise InvalidInput("checkpoints", [], "at least one checkpoint")
        vector = domain.simplex("weights", self.weights, len(self.checkpoints)).tolist()
        for position, weight in enumerate(vector):
            domain.magnitude(f"weights[{position}]", weight, zero=True)
        object.__setattr__(self, "weights", tuple(vector))
        domain.magnitude("release_noise", self.release_noise, zero=True)
        if self.shared_affine is not None and not (isinstance(self.shared_affine, str) and self.shared_affine):
            raise InvalidInput("shared_affine", self.shared_affine, "None, or the name of who vouches for it")
        common_adjacency(checkpoint.run for checkpoint in self.checkpoints)

    @classmethod
    def of_runs(
        cls,
        runs: Iterable[Mechanism],
        weights: Iterable[float],
        *,
        release_noise: float = 0.0,
        shared_affine: str | None = None,
    ) -> LinearCombination:
        """The combination of the final models of some runs."""
        return cls(
            checkpoints=tuple(Checkpoint(run, run.steps) for run in runs),
            weights=tuple(weights),
            release_noise=release_noise,
            shared_affine=shared_affine,
        )

    @property
    def support(self) -> tuple[Checkpoint, ...]:
        return tuple(c for c, weight in zip(self.checkpoints, self.weights, strict=True) if weight > 0)

    @property
    def support_weights(self) -> tuple[float, ...]:
        return tuple(weight for weight in self.weights if weight > 0)


@dataclass(frozen=True)
class Bound:
    """What a theorem says of a combination: a profile (None where it has no formula) and its premises."""

    theorem: str
    profile: PrivacyProfile | None
    premises: tuple[Premise, ...]

    @property
    def certifies(self) -> bool:
        return self.profile is not None and all(premise.holds for premise in self.premises)

    @property
    def mu(self) -> float | None:
        return self.profile.mu if isinstance(self.profile, GaussianProfile) else None

    def epsilon(self, delta: float) -> float | None:
        return None if self.profile is None else self.profile.epsilon(delta)


def joint_release(combination: LinearCombination) -> Bound:
    """The composition of the exposed prefixes (the paper's worst case). Checkpoints of one run cost the latest."""
    support = combination.support
    return _bound("joint_release", common_premises(support), lambda: Exposure.of(support).profile())


def last_step(combination: LinearCombination) -> Bound:
    """Joint release of all but each run's last acting step, and that one merged (with release noise)."""
    support = combination.support
    premises = [
        *common_premises(support),
        full_batch(support),
        *separate_runs(support),
        linear_last_update(support),
        *noise_on_the_weights(support),
        only_release(),
    ]

    def profile() -> PrivacyProfile | None:
        if not all(premise.holds for premise in premises):
            return None
        mu = last_step_formula(support, [combination.support_weights], combination.release_noise)[0]
        return _after_ancestors(support, GaussianProfile(float(mu)))

    return _bound("last_step", premises, profile)


def merged_trajectory(combination: LinearCombination, alignment: Alignment = "appended") -> Bound:
    """The paper's accounting of linear combination under DP-SGD, whether or not it is a proof here.

    Poisson sampling: one step each is a mixture of Gaussians; where the clipped total is the whole update, each
    step costs its full-batch value, because hidden states differ even when the record is not drawn.
    """
    support = combination.support
    separate = separate_runs(support)
    bounded = bounded_update(support, combination.shared_affine)

    def profile() -> PrivacyProfile | None:
        # There is a formula, proof or not, as soon as the runs are separate.
        return _merged_trajectory_profile(combination, alignment) if all(p.holds for p in separate) else None

    name = "merged_trajectory_prepended" if alignment == "prepended" else "merged_trajectory"
    premises = [*common_premises(support), *separate, bounded, *noise_on_the_weights(support), only_release()]
    return _bound(name, premises, profile)


def hidden_state(combination: LinearCombination) -> Bound:
    """The hidden-state theorem with release noise τ, by the best shifts, re-priced after projection."""
    support = combination.support
    premises = (*common_premises(support), *hidden_state_premises(support))
    profile = None
    if all(premise.holds for premise in premises):
        updates = chains(support)
        weights, noise = np.asarray(combination.support_weights), combination.release_noise
        mu = priced(updates, weights, noise, best_shifts(updates, weights, noise))
        profile = GaussianProfile(mu)
    return Bound("hidden_state", profile, premises)


THEOREMS: dict[str, Callable[[LinearCombination], Bound]] = {
    "joint_release": joint_release,
    "last_step": last_step,
    "hidden_state": hidden_state,
    "merged_trajectory": merged_trajectory,
    "merged_trajectory_prepended": lambda combination: merged_trajectory(combination, "prepended"),
}
"""In the order in which ties are resolved."""


def tightest(bounds: Sequence[Bound], delta: float) -> tuple[Bound, float] | None:
    """The certifying bound with the smallest ε; of equal ones (to 1e-9) the first. None if nothing certifies."""
    best: tuple[Bound, float] | None = None
    for bound in bounds:
        epsilon = bound.epsilon(delta) if bound.certifies else None
        if epsilon is not None and (best is None or epsilon < best[1] * (1 - 1e-9)):
            best = bound, epsilon
    return best


def _bound(theorem: str, premises: list[Premise], profile: Callable[[], PrivacyProfile | None]) -> Bound:
    """A bound whose profile may turn out to have no proved accounting, which is then one more failing premise."""
    try:
        return Bound(theorem, profile(), tuple(premises))
    except NoGuarantee as reason:
        return Bound(theorem, None, (*premises, Premise("accounting_proved", False, f"nobody: {reason}")))


def _merged_trajectory_profile(combination: LinearCombination, alignment: Alignment) -> PrivacyProfile | None:
    support = combination.support
    if not all(isinstance(checkpoint.run, NoisyRun) for checkpoint in support):
        return None
    if any(isinstance(c.run, DpSgd) and c.run.sampling is Sampling.SHUFFLED for c in support):
        return None
    if full_batch(support).holds or whole_update_clipped(support):
        mu = merged_trajectory_formula(support, [combination.support_weights], alignment)[0]
        return _after_ancestors(support, GaussianProfile(float(mu)))
    step = _sampled_step(combination) if one_step(support) else None
    return None if step is None else _after_ancestors(support, step)


def _sampled_step(combination: LinearCombination) -> PrivacyProfile | None:
    """One merged step of Poisson-sampled runs under add_remove: each run draws the record by itself.

    N(0, s²) against the mixture, over which runs drew it, of N(Σ_drawn λ_i η_i C_i, s²).
    """
    support = combination.support
    shifts, rates, variance = [], [], 0.0
    for checkpoint, weight in zip(support, combination.support_weights, strict=True):
        run = checkpoint.run
        if not isinstance(run, NoisyRun) or run.adjacency is not Adjacency.ADD_REMOVE:
            return None
        moves = run.moves(checkpoint.step)
        acting = np.flatnonzero(moves.shift)
        if acting.size:
            place = acting[-1]
            shifts.append(weight * float(moves.shift[place]))
            rates.append(float(run.sampling_rates[place]) if isinstance(run, DpSgd) else 1.0)
            variance += (weight * float(moves.noise[place])) ** 2
    if sum(rate < 1 for rate in rates) > MOST_SAMPLED_RUNS:
        return None
    if not shifts:
        return GaussianProfile(0.0)
    if variance == 0:
        return NonPrivateProfile()
    outcomes: dict[float, float] = {}
    for drawn in product(*((True,) if rate == 1 else (False, True) for rate in rates)):
        chance = float(np.prod([rate if d else 1 - rate for d, rate in zip(drawn, rates, strict=True)]))
        if chance > 0:
            total = sum(shift for shift, d in zip(shifts, drawn, strict=True) if d) / float(np.sqrt(variance))
            outcomes[total] = outcomes.get(total, 0.0) + chance
    if max(outcomes) > HOPELESS_RATIO:
        return NonPrivateProfile()
    return LossDistributionProfile.of({MixtureStep(tuple(outcomes), tuple(outcomes.values())): 1})


def _after_ancestors(support: Sequence[Checkpoint], profile: PrivacyProfile) -> PrivacyProfile:
    """The profile together with the joint release of whatever the runs started from."""
    ancestors = [ancestor for checkpoint in support for ancestor in checkpoint.ancestors]
    return compose([profile, Exposure.of(ancestors).profile()]) if ancestors else profile
