"""DP-SGD runs as their records describe them.

Guarantees: `own_profile(upto)` is what the manifest's facts prove for a prefix, and no more: batches that were
shuffled are not accounted as if they had been sampled.
Refuses: shuffled batches under add_remove; Poisson sampling of a clipped total under replace_one; numbers outside
their domain, each named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.composition import compose
from dpmerge.accounting.exposure import Adjacency, Checkpoint, Mechanism
from dpmerge.accounting.gaussian import GaussianProfile
from dpmerge.accounting.loss_distribution import LossDistributionProfile, epsilon_curve
from dpmerge.accounting.profile import NonPrivateProfile, PrivacyProfile
from dpmerge.accounting.random_selection import SelectionProfile
from dpmerge.accounting.smoothness import DeclaredLipschitz, Smoothness
from dpmerge.accounting.step_mechanisms import HOPELESS_RATIO, PoissonStep, Step
from dpmerge.accounting.training_settings import MOST_STEPS, Clipping, Optimizer, Sampling, StepBlock, enum_member
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, NoGuaranteeError

if TYPE_CHECKING:
    from dpmerge.accounting.shuffled_passes import Passes, SecretOrder


class Moves(NamedTuple):
    """For each step, how far one record can move the weights and how much noise they receive."""

    shift: Array
    noise: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class DpSgd(Mechanism):
    """One DP-SGD training run (theory 2.2).

    Args:
        blocks: Its steps, in order.
        adjacency: Which datasets are neighbours.
        sampling: How batches were formed; None: full batch if every sampling rate is 1, else Poisson.
        steps_per_epoch: Of shuffled batches: the steps of a whole pass.
        passes: Of shuffled batches: (passes, steps of each) in order, where some were cut short; None: whole ones.
        order: Of shuffled batches: their secret order, which makes a pass cut short by a fixed step count in part.
        clipping: Of each record's gradient, or of the batch's total.
        flat_clipping: Whether one clip norm is for all weights together.
        optimizer: What theorems ask of it.
        smoothness: What is known of the loss, for `hidden_state`.
        ancestry: The privately trained checkpoint it started from, if any.
        unbroken_steps: After how many steps its updates no longer follow one from another (steps that were taken and
            lost, an optimizer that was reset); None: they all do.
        independent_noise: Whether its noise is no other run's.
        label: Its name.
        vouched_by: Who says all this.
        noise_group: Of runs that share a noise seed: a name for what they share.

    Raises:
        InvalidInputError: Facts outside their domain, or that contradict each other.

    >>> block = StepBlock(steps=20, noise_multiplier=32, clip_norm=2, learning_rate=4)
    >>> run = DpSgd(blocks=(block,), adjacency=Adjacency.REPLACE_ONE)
    >>> round(run.profile().epsilon(1e-5), 6), round(run.profile(upto=5).epsilon(1e-5), 6)
    (1.047054, 0.490591)
    """

    blocks: Sequence[StepBlock]
    adjacency: Adjacency
    sampling: Sampling | None = None  # None: full batch if every sampling rate is 1, else Poisson
    steps_per_epoch: int | None = None
    passes: Sequence[tuple[int, int]] | None = None
    order: SecretOrder | None = None
    clipping: Clipping = Clipping.PER_EXAMPLE
    flat_clipping: bool = True
    optimizer: Optimizer = field(default_factory=Optimizer)
    smoothness: Smoothness | DeclaredLipschitz | None = None
    ancestry: Checkpoint | None = None
    unbroken_steps: int | None = None
    independent_noise: bool = True
    label: str = "run"
    vouched_by: str = "the run's record"
    noise_group: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.blocks, StepBlock):
            raise InvalidInputError("blocks", self.blocks, "a list of StepBlocks", found="one StepBlock")
        object.__setattr__(self, "blocks", tuple(self.blocks))
        if not self.blocks:
            raise InvalidInputError("blocks", [], "at least one block of steps")
        for position, block in enumerate(self.blocks):
            validation.instance(f"blocks[{position}]", block, StepBlock, "a StepBlock")
        validation.integer("steps of all blocks", self.steps, least=1, most=MOST_STEPS)
        validation.truth("flat_clipping", self.flat_clipping)
        validation.truth("independent_noise", self.independent_noise)
        validation.instance("optimizer", self.optimizer, Optimizer, "an Optimizer")
        kinds = (Smoothness, DeclaredLipschitz, type(None))
        validation.instance("smoothness", self.smoothness, kinds, "a Smoothness, a DeclaredLipschitz or None")
        validation.instance("ancestry", self.ancestry, (Checkpoint, type(None)), "a Checkpoint of the parent, or None")
        if self.unbroken_steps is not None:
            validation.integer("unbroken_steps", self.unbroken_steps, least=0, most=self.steps)
        for name, kind in (("adjacency", Adjacency), ("clipping", Clipping)):
            object.__setattr__(self, name, enum_member(name, getattr(self, name), kind))
        object.__setattr__(self, "sampling", self._checked_sampling())
        self._check_epochs()
        if isinstance(self.smoothness, DeclaredLipschitz):
            self.smoothness.per_step(self.steps)

    def _checked_sampling(self) -> Sampling:
        """As stated, or as the rates say; a rate below 1 is one of Poisson sampling."""
        sampled = [position for position, block in enumerate(self.blocks) if block.sampling_rate < 1]
        sampling = self.sampling or (Sampling.POISSON if sampled else Sampling.FULL_BATCH)
        sampling = Sampling(enum_member("sampling", sampling, Sampling))
        if sampling is not Sampling.POISSON and sampled:
            rate = self.blocks[sampled[0]].sampling_rate
            accepted = f"1 (or left out) for {sampling} batches; only poisson ones have a rate"
            raise InvalidInputError(f"blocks[{sampled[0]}].sampling_rate", rate, accepted)
        return sampling

    def _check_epochs(self) -> None:
        """Shuffled batches have an epoch, and no others do; what they cost is known where n is public."""
        shuffled = self.sampling is Sampling.SHUFFLED
        if shuffled != (self.steps_per_epoch is not None):
            accepted = "an integer ≥ 1 for shuffled batches, and left out for all others"
            raise InvalidInputError("steps_per_epoch", self.steps_per_epoch, accepted)
        for name in ("passes", "order"):
            if not shuffled and getattr(self, name) is not None:
                raise InvalidInputError(name, getattr(self, name), "left out for all but shuffled batches")
        if shuffled:
            validation.integer("steps_per_epoch", self.steps_per_epoch, least=1, most=MOST_STEPS)
            self.shuffled_passes  # noqa: B018  passes that contradict the run are refused here
        if shuffled and not self.adjacency.size_is_public:
            accepted = f"full_batch or poisson under {self.adjacency}; shuffled under replace_one or zero_out only"
            raise InvalidInputError("sampling", "shuffled", accepted)

    @property
    def steps(self) -> int:
        return sum(block.steps for block in self.blocks)

    @cached_property
    def rates(self) -> Array:
        """The effective rate of each step."""
        return np.concatenate([block.rates for block in self.blocks])

    @cached_property
    def clip_norms(self) -> Array:
        return np.repeat([float(b.clip_norm) for b in self.blocks], [b.steps for b in self.blocks])

    @cached_property
    def noise_multipliers(self) -> Array:
        return np.repeat([float(b.noise_multiplier) for b in self.blocks], [b.steps for b in self.blocks])

    @cached_property
    def sampling_rates(self) -> Array:
        return np.repeat([float(b.sampling_rate) for b in self.blocks], [b.steps for b in self.blocks])

    @property
    def sensitivity(self) -> int:
        """k: one record moves a clipped sum by k·C. A clipped total can be turned round under any adjacency."""
        return self.adjacency.sensitivity if self.clipping is Clipping.PER_EXAMPLE else 2

    @property
    def is_full_batch(self) -> bool:
        return self.sampling is not Sampling.SHUFFLED and bool(np.all(self.sampling_rates == 1))

    def moves(self, upto: int) -> Moves:
        """Shift η·k·C and noise η·σ·C of each step up to a given one, as if every record were in every batch."""
        scale = self.rates[:upto] * self.clip_norms[:upto]
        return Moves(self.sensitivity * scale, self.noise_multipliers[:upto] * scale)

    def step_mus(self, upto: int) -> Array:
        """What each step costs by itself as a full-batch Gaussian step, k/σ."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.sensitivity / self.noise_multipliers[:upto])

    def largest_lipschitz(self, upto: int) -> float | None:
        """The largest factor of the steps that act; None where a bound is missing, or nothing acts."""
        factors = self.lipschitz(upto)
        acting = None if factors is None else factors[self.rates[:upto] > 0]
        return None if acting is None or not acting.size else float(acting.max())

    def lipschitz(self, upto: int) -> Array | None:
        """Lipschitz factor of each update up to a step, or None where the facts do not give one."""
        if self.smoothness is None:
            return None
        if isinstance(self.smoothness, DeclaredLipschitz):
            return self.smoothness.per_step(self.steps)[:upto]
        return self.smoothness.factors(self.rates[:upto], self.optimizer.weight_decay)

    def own_profile(self, upto: int) -> PrivacyProfile:
        Checkpoint(self, upto)
        if upto == 0:
            return GaussianProfile(0.0)
        if self.sampling is Sampling.SHUFFLED:
            return GaussianProfile(_composed_mu(self.sensitivity, self._noise_of_epochs(upto)))
        return self._profile_of(upto)

    def share_seen(self, upto: int) -> float:
        return self.shuffled_passes.share(upto) if upto and self.sampling is Sampling.SHUFFLED else 1.0

    def fixed_step_profile(self, upto: int) -> PrivacyProfile:
        share = self.share_seen(upto)
        if share == 1:
            return self.own_profile(upto)
        noise = self._noise_of_epochs(upto)
        outcomes = [GaussianProfile(_composed_mu(self.sensitivity, each)) for each in (noise[:-1], noise)]
        return SelectionProfile(tuple(outcomes), (1 - share, share))

    def profile_without(self, upto: int, left_out: int) -> PrivacyProfile:
        """What the steps up to a given one cost but for one of them (counted from 0), which is released otherwise."""
        assert self.sampling is not Sampling.SHUFFLED, "a shuffled pass is counted as a whole"
        return self._profile_of(upto, left_out)

    def _profile_of(self, upto: int, left_out: int | None = None) -> PrivacyProfile:
        if self.is_full_batch:
            noise = self.noise_multipliers[:upto]
            taken = noise if left_out is None else np.delete(noise, left_out)
            return GaussianProfile(_composed_mu(self.sensitivity, taken))
        return self._sampled_profile(upto, left_out)

    def prefix_epsilons(self, delta: float, steps: Sequence[int] | None = None) -> Array:
        """ε at δ of every given prefix (by default all), ancestors included.

        One discretisation of each distinct step and one inverse transform for each prefix.
        """
        chosen = range(1, self.steps + 1) if steps is None else steps
        profiles = [self.profile(upto) for upto in chosen]
        sampled = [p for p in profiles if isinstance(p, LossDistributionProfile)]
        curve = iter(epsilon_curve(sampled, delta) if sampled else ())
        return np.array([next(curve) if isinstance(p, LossDistributionProfile) else p.epsilon(delta) for p in profiles])

    @cached_property
    def shuffled_passes(self) -> Passes:
        from dpmerge.accounting.shuffled_passes import Passes  # no other run needs it

        assert self.steps_per_epoch is not None, "only shuffled batches have passes"
        return Passes(steps=self.steps, steps_per_epoch=self.steps_per_epoch, taken=self.passes, order=self.order)

    def _noise_of_epochs(self, upto: int) -> Array:
        """The smallest noise multiplier in each pass begun: a record is in one batch of it, nobody says which."""
        return np.minimum.reduceat(self.noise_multipliers[:upto], self.shuffled_passes.starts(upto))

    def _sampled_profile(self, upto: int, left_out: int | None) -> PrivacyProfile:
        replace_one = self.adjacency is Adjacency.REPLACE_ONE
        if replace_one and self.clipping is Clipping.AGGREGATE:
            raise NoGuaranteeError(
                f"{self.label}: Poisson sampling with aggregate clipping under replace_one has no proved accounting; "
                "per_example clipping or full_batch has"
            )
        # The replace_one distribution models the two ends ±C of a replacement itself. A null record is drawn, or is
        # not, without a trace: zero_out has add_remove's two distributions.
        reach = 1 if replace_one else self.sensitivity
        sampled = Counter[tuple[float, float]]()
        whole: list[tuple[float, int]] = []
        for block, steps in self._begun_blocks(upto, left_out):
            if block.sampling_rate < 1:
                sampled[float(block.noise_multiplier), float(block.sampling_rate)] += steps
            else:
                whole.append((float(block.noise_multiplier), steps))
        if any(sigma * HOPELESS_RATIO < reach for sigma, _ in sampled):
            return NonPrivateProfile()
        counts: dict[Step, int] = {
            PoissonStep(ratio=reach / sigma, sampling_rate=rate, replace_one=replace_one): count
            for (sigma, rate), count in sampled.items()
        }
        levels = np.array([sigma for sigma, _ in whole])
        gaussian = GaussianProfile(_composed_mu(self.sensitivity, np.repeat(levels, [steps for _, steps in whole])))
        return compose([gaussian, LossDistributionProfile.of(counts)]) if counts else gaussian

    def _begun_blocks(self, upto: int, left_out: int | None) -> Iterator[tuple[StepBlock, int]]:
        """The blocks that a prefix reaches into, and how many steps of each, but for one that is left out."""
        before = 0
        for block in self.blocks:
            within = min(upto - before, block.steps)
            if within <= 0:
                return
            counted = within - (left_out is not None and before <= left_out < before + within)
            if counted:
                yield block, counted
            before += block.steps


def _composed_mu(sensitivity: int, noise: Array) -> float:
    if np.any(noise == 0):
        return float(np.inf)
    return float(sensitivity * np.sqrt(np.sum(noise**-2.0)))
