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
from typing import TYPE_CHECKING

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.composition import compose
from dpmerge.accounting.exposure import Checkpoint, Exposure, Mechanism, common_adjacency
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.premises import (
    NoisyRun,
    Premise,
    bounded_update,
    common_premises,
    full_batch,
    hidden_state_premises,
    known_inclusion,
    learning_rates_known,
    linear_last_update,
    noise_on_the_weights,
    one_step,
    only_release,
    seen_in_part,
    separate_runs,
    unbroken,
    whole_update_clipped,
)
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.accounting.training_settings import Sampling
from dpmerge.errors import InvalidInputError, NoGuaranteeError

if TYPE_CHECKING:
    from dpmerge.accounting.linear_combination_mu import Alignment

# Each theorem loads its own formulas when it is asked: what joint release certifies is checked without the others.


@dataclass(frozen=True, kw_only=True)
class LinearCombination:
    """Σ λ_i θ_i over checkpoints, plus Gaussian release noise (theory 4).

    Args:
        checkpoints: The models averaged; `of_runs` takes runs for their final ones.
        weights: One for each, ≥ 0 and summing to 1.
        release_noise: Standard deviation τ, on the scale of the weights: one step's noise is effective rate × clip norm
            × noise multiplier.
        shared_affine: Who vouches that all runs share one affine update map; None if nobody does.

    Raises:
        InvalidInputError: Weights off the simplex, runs of different adjacency, no checkpoint.

    >>> from dpmerge.accounting import DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one") for block in blocks]
    >>> LinearCombination.of_runs(runs, [0.25, 0.75]).support_weights
    (0.25, 0.75)
    """

    checkpoints: Sequence[Checkpoint]
    weights: Sequence[float]
    release_noise: float = 0.0
    shared_affine: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoints", tuple(self.checkpoints))
        for position, checkpoint in enumerate(self.checkpoints):
            validation.instance(f"checkpoints[{position}]", checkpoint, Checkpoint, "a Checkpoint (of_runs takes runs)")
        if not self.checkpoints:
            raise InvalidInputError("checkpoints", [], "at least one checkpoint")
        vector = validation.simplex("weights", self.weights, len(self.checkpoints)).tolist()
        for position, weight in enumerate(vector):
            validation.magnitude(f"weights[{position}]", weight, zero=True)
        object.__setattr__(self, "weights", tuple(vector))
        validation.magnitude("release_noise", self.release_noise, zero=True)
        if self.shared_affine is not None and not (isinstance(self.shared_affine, str) and self.shared_affine):
            raise InvalidInputError("shared_affine", self.shared_affine, "None, or the name of who vouches for it")
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
    """What a theorem says of a combination.

    Args:
        theorem: Its name, as in THEOREMS.
        profile: What it says the combination costs; None where it has no formula.
        premises: What has to be true for that to be a proof, and who vouches for it.

    >>> Bound("joint_release", GaussianProfile(1.0), (Premise("independent_noise", True, "the record"),)).certifies
    True
    """

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
    """The composition of the exposed prefixes: the paper's worst case (theory 4.1).

    Args:
        combination: Of any runs; checkpoints of one run cost the latest.

    Returns:
        A bound that certifies whenever the runs' noise is independent.

    >>> from dpmerge.accounting import DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one") for block in blocks]
    >>> round(joint_release(LinearCombination.of_runs(runs, [0.2, 0.8])).epsilon(1e-5), 4)
    1.1838
    """
    support = combination.support
    exposure = Exposure.of(support)
    premises = [*common_premises(support), *seen_in_part(exposure.seen_in_part)]
    return _bound("joint_release", premises, exposure.fixed_steps_profile)


def last_step(combination: LinearCombination) -> Bound:
    """Joint release of all but each run's last acting step, that one merged (theory 4.2).

    Args:
        combination: Of SGD runs that are separate, with or without release noise: full batches, or (but for
            replace_one) batches that each run sampled by itself, of at most ten runs.

    Returns:
        A bound that certifies if nothing else of these runs is ever released; without a profile where a premise fails.

    >>> from dpmerge.accounting import DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one") for block in blocks]
    >>> round(last_step(LinearCombination.of_runs(runs, [0.2, 0.8])).epsilon(1e-5), 4)
    1.1611
    """
    support = combination.support
    premises = [
        *common_premises(support),
        *learning_rates_known(support),
        *known_inclusion(support),
        *unbroken(support),
        *separate_runs(support),
        linear_last_update(support),
        *noise_on_the_weights(support),
        only_release(),
    ]

    def profile() -> PrivacyProfile | None:
        if not all(premise.holds for premise in premises):
            return None
        if not full_batch(support).holds:
            from dpmerge.accounting.sampled_step import sampled_last_step

            step = sampled_last_step(support, combination.support_weights, combination.release_noise)
            return None if step is None else _after_ancestors(support, step)
        from dpmerge.accounting.linear_combination_mu import last_step_formula

        mu = last_step_formula(support, [combination.support_weights], combination.release_noise)[0]
        return _after_ancestors(support, GaussianProfile(float(mu)))

    return _bound("last_step", premises, profile)


def merged_trajectory(combination: LinearCombination, alignment: Alignment = "appended") -> Bound:
    """The paper's accounting, whether or not it is a proof here (theory 4.3).

    Poisson sampling: one step each is a mixture of Gaussians; where the clipped total is the whole update, each
    step costs its full-batch value, because hidden states differ even when the record is not drawn.

    Args:
        combination: Of DP-SGD runs or Gaussian releases that are separate.
        alignment: Where a shorter run's virtual steps stand: after its own (the paper's) or before them.

    Returns:
        A bound whose premise on updates holds for one step, a clipped total or a shared affine map, and for ordinary
        DP-SGD of two or more steps does not.

    >>> from dpmerge.accounting import DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one") for block in blocks]
    >>> bound = merged_trajectory(LinearCombination.of_runs(runs, [0.2, 0.8]))
    >>> bound.certifies, round(bound.epsilon(1e-5), 4)
    (False, 0.6205)
    """
    support = combination.support
    separate = [*separate_runs(support), *unbroken(support)]
    bounded = bounded_update(support, combination.shared_affine)

    def profile() -> PrivacyProfile | None:
        # There is a formula, proof or not, as soon as the runs are separate.
        return _merged_trajectory_profile(combination, alignment) if all(p.holds for p in separate) else None

    name = "merged_trajectory_prepended" if alignment == "prepended" else "merged_trajectory"
    rates = learning_rates_known(support)
    premises = [*common_premises(support), *rates, *separate, bounded, *noise_on_the_weights(support), only_release()]
    return _bound(name, premises, profile)


def hidden_state(combination: LinearCombination) -> Bound:
    """The hidden-state theorem with release noise τ, by the best shifts, re-priced after projection.

    (theory 4.6; the proof is in theory 9.3.)

    Args:
        combination: Of full-batch runs of plain SGD on smooth models, with or without release noise.

    Returns:
        A bound that certifies if nothing else of these runs is ever released; without a profile where a premise fails.

    >>> from dpmerge.accounting import DeclaredLipschitz, DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> smooth = DeclaredLipschitz(factors=1)
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one", smoothness=smooth) for block in blocks]
    >>> round(hidden_state(LinearCombination.of_runs(runs, [0.2, 0.8])).epsilon(1e-5), 4)
    0.777
    """
    support = combination.support
    premises = (*common_premises(support), *learning_rates_known(support), *hidden_state_premises(support))
    profile = None
    if all(premise.holds for premise in premises):
        from dpmerge.accounting.hidden_state_shifts import best_shifts, proved_mu
        from dpmerge.accounting.linear_combination_mu import chains

        updates = chains(support)
        weights, noise = np.asarray(combination.support_weights), combination.release_noise
        mu = proved_mu(updates, weights, noise, best_shifts(updates, weights, noise))
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
    """The certifying bound with the smallest ε.

    Args:
        bounds: What some theorems say of one combination.
        delta: The δ at which they are compared.

    Returns:
        The bound and its ε, of equal ones (to 1e-9) the first; None if nothing certifies.

    >>> from dpmerge.accounting import DpSgd, StepBlock
    >>> blocks = [StepBlock(steps=20, noise_multiplier=s, clip_norm=2, learning_rate=4) for s in (32, 64)]
    >>> runs = [DpSgd(blocks=[block], adjacency="replace_one") for block in blocks]
    >>> merge = LinearCombination.of_runs(runs, [0.2, 0.8])
    >>> tightest([theorem(merge) for theorem in THEOREMS.values()], 1e-5)[0].theorem
    'last_step'
    """
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
    except NoGuaranteeError as reason:
        return Bound(theorem, None, (*premises, Premise("accounting_proved", False, f"nobody: {reason}")))


def _merged_trajectory_profile(combination: LinearCombination, alignment: Alignment) -> PrivacyProfile | None:
    support = combination.support
    if not all(isinstance(checkpoint.run, NoisyRun) for checkpoint in support):
        return None
    if any(isinstance(c.run, DpSgd) and c.run.sampling is Sampling.SHUFFLED for c in support):
        return None
    if full_batch(support).holds or whole_update_clipped(support):
        from dpmerge.accounting.linear_combination_mu import merged_trajectory_formula

        mu = merged_trajectory_formula(support, [combination.support_weights], alignment)[0]
        return _after_ancestors(support, GaussianProfile(float(mu)))
    if not one_step(support):
        return None
    from dpmerge.accounting.sampled_step import sampled_step

    step = sampled_step(support, combination.support_weights)
    return None if step is None else _after_ancestors(support, step)


def _after_ancestors(support: Sequence[Checkpoint], profile: PrivacyProfile) -> PrivacyProfile:
    """The profile together with the joint release of whatever the runs started from."""
    ancestors = [ancestor for checkpoint in support for ancestor in checkpoint.ancestors]
    return compose([profile, Exposure.of(ancestors).profile()]) if ancestors else profile
