"""The checkpoints of a portfolio that a plan may use, each with its own cost and predicted noise.

Guarantees: every checkpoint has a finite cost at the δ asked for, or is a non-private model asked for by name; whatever
was left out is named, with the reason.
Refuses: portfolios without a usable checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import numpy as np

from dpmerge.accounting.exposure import Checkpoint, Exposure
from dpmerge.accounting.gaussian import GaussianProfile, largest_mu
from dpmerge.accounting.one_shot_mechanisms import WeightAverage
from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.errors import DeltaOutOfReachError, InvalidInputError, NoGuaranteeError
from dpmerge.evaluation.evaluation_progress import show_progress
from dpmerge.planning.averaging_reasons import averaged_with_reason, noise_decides
from dpmerge.planning.noise_prediction import NoisePrediction, is_relative, predicted_noise
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.portfolio.recorded_runs import Run, SavedCheckpoint


@dataclass(frozen=True, eq=False)
class UsableCheckpoint:
    """A kept checkpoint: what it costs by itself, every iterate up to it covered, and the noise it carries."""

    run: Run
    saved: SavedCheckpoint
    prefix: Checkpoint  # what its release exposes: the run up to this step
    profile: PrivacyProfile  # with passes over shuffled data counted whole: what averages are made of
    epsilon: float
    noise: NoisePrediction | None
    share_of_run: float  # of the sum of its run's rates; 1 where nothing is recorded of it

    @property
    def name(self) -> str:
        return self.saved.name

    @property
    def is_independent(self) -> bool:
        """Whether its noise, and that of what it started from, is known to be no other run's."""
        return all(c.run.independent_noise for c in (self.prefix, *self.prefix.ancestors))

    @cached_property
    def released_alone(self) -> PrivacyProfile:
        """What it costs if it is all that is released: of a pass cut short only the share that was seen."""
        exposure = Exposure.of([self.prefix])
        return exposure.fixed_steps_profile() if exposure.seen_in_part else self.profile

    @property
    def is_gaussian(self) -> bool:
        return isinstance(self.profile, GaussianProfile)


@dataclass(frozen=True, eq=False)
class UsableCheckpoints:
    """The usable checkpoints of a portfolio in its order, and why the others are not."""

    portfolio: Portfolio
    delta: float
    checkpoints: tuple[UsableCheckpoint, ...]
    left_out: Mapping[str, str]
    non_private: tuple[str, ...] = ()
    with_reason: bool = False  # average only what there is reason to average
    computed: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False)  # shared by all parts

    def __getitem__(self, name: str) -> UsableCheckpoint:
        for checkpoint in self.checkpoints:
            if checkpoint.name == name:
                return checkpoint
        if name in self.left_out:
            raise InvalidInputError(
                "checkpoint", name, "a checkpoint with a proved cost", found=f"{name}: {self.left_out[name]}"
            )
        known = [checkpoint.name for checkpoint in self.checkpoints]
        near = get_close_matches(name, known, n=3, cutoff=0.5)
        raise InvalidInputError("checkpoint", name, f"run@step, such as {', '.join(near or known[:4])}")

    def last_of(self, run: Run) -> UsableCheckpoint:
        """The latest checkpoint of a run."""
        return self._of_runs[run.id][-1]

    @cached_property
    def _of_runs(self) -> dict[str, tuple[UsableCheckpoint, ...]]:
        found: dict[str, list[UsableCheckpoint]] = {}
        for checkpoint in self.checkpoints:
            found.setdefault(checkpoint.run.id, []).append(checkpoint)
        return {run: tuple(checkpoints) for run, checkpoints in found.items()}

    @cached_property
    def groups(self) -> tuple[tuple[tuple[UsableCheckpoint, ...], ...], ...]:
        """The checkpoints that may be averaged: group by group, in each run by run, by increasing step."""
        groups = []
        for together in self.portfolio.combinable():
            runs = averaged_with_reason(together) if self.with_reason else together
            # An average of one run's weights has that run's noise: averaged again with them, nothing is gained.
            runs = tuple(run for run in runs if not isinstance(run.mechanism, WeightAverage)) or runs
            if found := tuple(self._of_runs[run.id] for run in runs if run.id in self._of_runs):
                groups.append(found)
        return tuple(groups)

    def averaged_with_reason(self) -> UsableCheckpoints:
        """The same, of which only those are averaged that there is reason to average."""
        return replace(self, with_reason=True)

    @property
    def noise_decides(self) -> bool:
        """Whether all runs are of models that noise alone keeps from being good."""
        return all(map(noise_decides, self.portfolio.runs))

    def trained_to(self, share: float) -> UsableCheckpoints | None:
        """Only those that made at least this share of their run; None if that is all of them, or none."""
        kept = tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.share_of_run >= share)
        return replace(self, checkpoints=kept) if 0 < len(kept) < len(self.checkpoints) else None

    def squared_mu(self, checkpoint: UsableCheckpoint) -> float:
        """μ² of a Gaussian cost, or of the Gaussian with the same ε at δ: additive, to compare and never to certify."""
        if isinstance(checkpoint.profile, GaussianProfile):
            return checkpoint.profile.mu**2
        found: float = self.remembered(
            ("squared_mu", checkpoint.name), lambda: largest_mu(checkpoint.epsilon, self.delta) ** 2
        )
        return found

    def remembered(self, key: tuple[object, ...], compute: Callable[[], Any]) -> Any:
        """What was computed under a key before, by whatever part of these checkpoints; else what `compute` gives."""
        if key not in self.computed:
            self.computed[key] = compute()
        return self.computed[key]


def usable_checkpoints(portfolio: Portfolio, delta: float, *, non_private: Collection[str] = ()) -> UsableCheckpoints:
    """Account for every kept checkpoint at δ; asked again for the same portfolio and δ, the answer is at hand.

    Args:
        portfolio: The runs.
        delta: The δ at which each must have a finite ε.
        non_private: Runs without privacy that may be drawn after all, by name.

    Returns:
        The checkpoints that may be used, and for each of the others why not.

    Raises:
        DeltaOutOfReachError: Nothing is usable, and a larger δ would change that.
        InvalidInputError: Nothing is usable, or a run called non-private is private or not there.

    >>> from dpmerge import Portfolio
    >>> usable = usable_checkpoints(Portfolio.load("examples/mnist", contents=False), 1e-5)
    >>> len(usable.checkpoints), round(usable["ladder-1@20"].epsilon, 4)
    (20, 0.0505)
    """
    key = ("usable_checkpoints", delta, tuple(non_private))
    if key not in portfolio.computed:
        portfolio.computed[key] = _all_accounted(portfolio, delta, non_private)
    found: UsableCheckpoints = portfolio.computed[key]
    return found


def _all_accounted(portfolio: Portfolio, delta: float, non_private: Collection[str]) -> UsableCheckpoints:
    for name in non_private:
        portfolio.run(name)
    relative = is_relative(run.mechanism for run in portfolio.runs)
    usable: list[UsableCheckpoint] = []
    left_out: dict[str, NoGuaranteeError | str] = {}
    kept = [(run, saved) for run in portfolio.runs for saved in run.checkpoints]
    with show_progress(None, "accounting for checkpoints") as progress:
        for number, (run, saved) in enumerate(kept, start=1):
            found = _accounted(run, saved, delta, drawn_anyway=run.id in non_private, relative=relative)
            if isinstance(found, UsableCheckpoint):
                usable.append(found)
            else:
                left_out[saved.name] = found
            progress(number, len(kept))
    _require_non_private(non_private, usable)
    if not usable:
        raise _nothing_usable(portfolio, left_out)
    reasons = {name: str(reason) for name, reason in left_out.items()}
    return UsableCheckpoints(portfolio, delta, tuple(usable), reasons, tuple(non_private))


def _accounted(
    run: Run, saved: SavedCheckpoint, delta: float, *, drawn_anyway: bool, relative: bool
) -> UsableCheckpoint | NoGuaranteeError | str:
    """One checkpoint with its cost, or why it is left out."""
    if saved.step == 0:
        return "where its run started, not a trained model"
    prefix = run.at(saved.step)
    try:
        profile = prefix.run.profile(saved.step)
        epsilon = profile.epsilon(delta)
    except NoGuaranteeError as reason:
        return reason
    if np.isinf(epsilon) and not drawn_anyway:
        return "not private, and not asked for by name"
    noise = predicted_noise(prefix, relative=relative)
    return UsableCheckpoint(run, saved, prefix, profile, epsilon, noise, _share_of_run(run, noise))


def _require_non_private(names: Collection[str], usable: Sequence[UsableCheckpoint]) -> None:
    without = {checkpoint.run.id for checkpoint in usable if np.isinf(checkpoint.epsilon)}
    for name in names:
        if name not in without:
            raise InvalidInputError("non_private", name, "a run without privacy", found=f"{name}, which has some")


def _nothing_usable(
    portfolio: Portfolio, left_out: Mapping[str, NoGuaranteeError | str]
) -> DeltaOutOfReachError | InvalidInputError:
    for reason in reversed(list(left_out.values())):
        if isinstance(reason, DeltaOutOfReachError):
            return reason
    reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "no checkpoint was kept"
    return InvalidInputError("portfolio", str(portfolio.path), "a portfolio with a private checkpoint", found=reasons)


def _share_of_run(run: Run, noise: NoisePrediction | None) -> float:
    whole = predicted_noise(run.at(run.mechanism.steps))
    return 1.0 if noise is None or whole is None else noise.travelled / whole.travelled
