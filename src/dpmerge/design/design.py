"""Which runs to train so that every target ε of a range is later served, with the least noise, by averaging them.

Guarantees: what each level costs is computed by `joint_release` for the noise multipliers as printed, and is at most
its target; no target of the range has more noise, relative to a model trained for it, than `worst_excess` says.
Refuses: ranges that are not 0 < low < high; numbers of levels, steps, runs or checkpoints that make no design.
Assumes full batches, one clip norm and a constant rate, and predicts noise, not bias: see
docs/reference/verbs/design.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dpmerge.accounting import validation
from dpmerge.accounting.combination import LinearCombination, joint_release
from dpmerge.accounting.exposure import Adjacency, Checkpoint, Exposure
from dpmerge.accounting.gaussian import largest_mu
from dpmerge.accounting.mechanisms import DpSgd
from dpmerge.accounting.training_settings import StepBlock, enum_member
from dpmerge.design.covering import ReachableSums
from dpmerge.design.noise_ladder import MOST_RUNS, SOUGHT, Budgets, NoiseLadder, kept_steps
from dpmerge.errors import InvalidInputError
from dpmerge.terms.checkpoint_reference import CheckpointReference
from dpmerge.terms.recipe import Recipe

MOST_LEVELS, MOST_STEPS, MOST_CHECKPOINTS = 200, 100_000, 25
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-6, 1e3
_MARGIN = 1e-7  # of a budget: more than the accountant rounds up by


@dataclass(frozen=True, kw_only=True)
class RunDesign:
    """A run to train, the steps after which to keep its weights, and what it costs alone."""

    name: str
    noise_multiplier: float
    steps: int
    checkpoints: tuple[int, ...]
    mu: float
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class LevelDesign:
    """What to average for a target, what that costs, and its noise relative to a model trained for the target."""

    target: float
    recipe: Recipe
    epsilon: float
    excess: float


@dataclass(frozen=True, kw_only=True)
class Design:
    """The runs, what they serve, and how that compares. An excess is a ratio of variances: 1 is as good as retraining.

    `worst_excess` is over every target of the range, levels or not.
    `joint_epsilon` is what all runs cost together, whatever is ever made of them.
    `unaveraged_excess`: equally many runs, of which single checkpoints are released, have at least this worst excess.
    `sought` is None if the number of runs was given.
    """

    low: float
    high: float
    delta: float
    adjacency: Adjacency
    steps: int
    runs: tuple[RunDesign, ...]
    levels: tuple[LevelDesign, ...]
    worst_excess: float
    worst_excess_of_levels: float
    joint_epsilon: float
    ladder: NoiseLadder
    unaveraged_excess: float
    sought: float | None

    @property
    def reached(self) -> bool:
        """Whether the excess sought, if any, was found with at most MOST_RUNS runs."""
        return self.sought is None or self.worst_excess <= self.sought

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "range": [self.low, self.high],
            "delta": self.delta,
            "adjacency": str(self.adjacency),
            "steps": self.steps,
            "theorem": "joint_release",
            "runs": [{**vars(run), "checkpoints": list(run.checkpoints)} for run in self.runs],
            "levels": [
                {
                    "target": level.target,
                    "epsilon": level.epsilon,
                    "weights": dict(level.recipe.parts),
                    "excess": level.excess,
                }
                for level in self.levels
            ],
            "worst_excess": self.worst_excess,
            "worst_excess_of_levels": self.worst_excess_of_levels,
            "sought_excess": self.sought,
            "reached": self.reached,
            "joint_epsilon": self.joint_epsilon,
            "ladder": dict(vars(self.ladder)),
            "unaveraged_excess_at_least": self.unaveraged_excess,
        }


def parse_range(text: str) -> tuple[float, float]:
    """The two ends of a range of ε written low:high.

    Args:
        text: Two numbers and a colon.

    Returns:
        Both numbers.

    Raises:
        InvalidInputError: Anything else, or a range that is none.

    >>> parse_range("0.1:2")
    (0.1, 2.0)
    """
    try:
        low, high = (float(part) for part in text.split(":"))
    except ValueError:
        raise InvalidInputError("range", text, "two numbers low:high, such as 0.1:2") from None
    return _checked_range(low, high)


def design(
    low: float,
    high: float,
    delta: float,
    *,
    levels: int = 10,
    steps: int = 20,
    runs: int | None = None,
    checkpoints: int | None = None,
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
) -> Design:
    """The runs to train for targets from ε = low to high at δ (docs/reference/verbs/design.md; theory 4).

    Args:
        low: The smallest ε to serve.
        high: The largest.
        delta: The δ at which they are met.
        levels: For how many targets of the range to say what to average.
        steps: Full-batch steps of every run.
        runs: At most so many (fewer where one percent of excess is reached before); None takes as many as an excess of
            SOUGHT needs.
        checkpoints: Kept of each run, from half of training to its end; None keeps five, or what there is.
        adjacency: Which datasets are neighbours.

    Returns:
        The runs, what to average of them for each target, and how that compares with equal runs.

    Raises:
        InvalidInputError: A range that is none, or numbers that make no design.

    >>> best = design(0.1, 2, 1e-5, runs=3, checkpoints=1)
    >>> [run.noise_multiplier for run in best.runs], round(best.worst_excess, 2)
    ([275.1, 116.8, 45.64], 5.55)
    """
    low, high = _checked_range(low, high)
    delta = validation.delta("delta", delta)
    levels = validation.integer("levels", levels, least=2, most=MOST_LEVELS)
    steps = validation.integer("steps", steps, least=1, most=MOST_STEPS)
    kept = _checked_count(checkpoints, steps)
    if runs is not None:
        runs = validation.integer("runs", runs, least=1, most=MOST_RUNS)
    budgets = Budgets(
        bottom=_budget(low, delta),
        top=_budget(high, delta),
        steps=steps,
        kept=kept_steps(steps, kept),
        adjacency=enum_member("adjacency", adjacency, Adjacency),
    )
    targets = _targets(low, high, levels)
    return _designed(budgets, budgets.best_noise(runs), targets, delta, SOUGHT if runs is None else None)


def _checked_count(checkpoints: int | None, steps: int) -> int:
    """How many checkpoints to keep: those before half of training are not."""
    most = min(steps // 2 + 1, MOST_CHECKPOINTS)
    count = validation.integer("checkpoints", min(5, most) if checkpoints is None else checkpoints, least=1)
    if count > most:
        accepted = f"an integer from 1 to {most} for {steps} steps: those before half of training are not kept"
        raise InvalidInputError("checkpoints", checkpoints, accepted)
    return count


def _designed(
    budgets: Budgets, noise: Sequence[float], targets: Sequence[float], delta: float, sought: float | None
) -> Design:
    """Everything there is to say about runs with these noise multipliers."""
    runs = [_mechanism(f"run-{i}", budgets, value) for i, value in enumerate(noise, start=1)]
    reach = budgets.reach(noise)
    levels = tuple(_level(target, delta, budgets.kept, reach, runs) for target in targets)
    worst = reach.worst(budgets.bottom, budgets.top)
    return Design(
        low=targets[0],
        high=targets[-1],
        delta=delta,
        adjacency=budgets.adjacency,
        steps=budgets.steps,
        runs=tuple(
            RunDesign(
                name=run.label,
                noise_multiplier=value,
                steps=budgets.steps,
                checkpoints=budgets.kept,
                mu=math.sqrt(budgets.whole_cost) / value,
                epsilon=run.profile().epsilon(delta),
            )
            for run, value in zip(runs, noise, strict=True)
        ),
        levels=levels,
        worst_excess=worst,
        worst_excess_of_levels=max(level.excess for level in levels),
        joint_epsilon=Exposure.of(Checkpoint(run, run.steps) for run in runs).profile().epsilon(delta),
        ladder=budgets.ladder(len(runs), worst),
        unaveraged_excess=budgets.unaveraged_worst(len(runs)),
        sought=sought,
    )


def _mechanism(name: str, budgets: Budgets, noise: float) -> DpSgd:
    # Rate and clip norm do not enter the cost; any that are common to all runs will do.
    block = StepBlock(steps=budgets.steps, noise_multiplier=noise, clip_norm=1.0, learning_rate=1.0)
    return DpSgd(blocks=(block,), adjacency=budgets.adjacency, label=name)


def _level(
    target: float, delta: float, kept: Sequence[int], reach: ReachableSums, runs: Sequence[DpSgd]
) -> LevelDesign:
    """The largest sum within the target's budget, averaged with precision weights and accounted for."""
    budget = _budget(target, delta)
    index = reach.below(budget)
    chosen = [(run, kept[c]) for run, c in zip(runs, reach.choices[index].tolist(), strict=True) if c >= 0]
    # Signal over variance is s·η / s·(ησC)²: the same for every checkpoint of a run.
    precision = np.array([run.blocks[0].noise_multiplier ** -2.0 for run, _ in chosen])
    recipe = Recipe.of(
        zip(
            (str(CheckpointReference(run.label, step)) for run, step in chosen),
            precision / precision.sum(),
            strict=True,
        )
    )
    average = LinearCombination(checkpoints=[Checkpoint(*pair) for pair in chosen], weights=recipe.weights)
    epsilon = joint_release(average).epsilon(delta)
    assert epsilon is not None
    assert epsilon <= target
    return LevelDesign(
        target=target, recipe=recipe, epsilon=epsilon, excess=max(1.0, budget / float(reach.sums[index]))
    )


def _checked_range(low: float, high: float) -> tuple[float, float]:
    accepted = f"two numbers low < high from {SMALLEST_EPSILON:g} to {LARGEST_EPSILON:g}"
    low, high = (validation.number("range", end, accepted) for end in (low, high))
    if not SMALLEST_EPSILON <= low < high <= LARGEST_EPSILON:
        raise InvalidInputError("range", f"{low:g}:{high:g}", accepted)
    return low, high


def _budget(epsilon: float, delta: float) -> float:
    """The μ² that a release with this (ε, δ) may cost."""
    return largest_mu(epsilon, delta) ** 2 * (1 - _MARGIN)


def _targets(low: float, high: float, levels: int) -> list[float]:
    """Evenly spaced in the logarithm, and as short to write as leaves them apart."""
    between = np.geomspace(low, high, levels)[1:-1]
    for digits in range(3, 18):
        targets = [low, *(float(f"{target:.{digits}g}") for target in between), high]
        if all(a < b for a, b in pairwise(targets)):
            return targets
    raise InvalidInputError("range", f"{low!r}:{high!r}", f"a range wide enough for {levels} different levels")
