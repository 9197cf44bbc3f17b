"""The ladder: averages of k of N equal runs, beside training once, random selection and shorter runs at the same ε.

Guarantees: every ε is that of a joint release, which needs no premise but independent noise (theory 4.1); what is
compared has the same ε (a shorter run: at most that) and is paired within a repetition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dpmerge.accounting.profile import PrivacyProfile
from dpmerge.accounting.validation import Array
from dpmerge.evaluation.merged_model import StoredModel, combined
from dpmerge.planning.candidates import Candidate, candidate
from dpmerge.planning.plan import Plan
from dpmerge.planning.planner import plan
from dpmerge.planning.selection_program import best_mixture
from dpmerge.portfolio import Portfolio
from dpmerge.terms.guarantee import Guarantee
from dpmerge.terms.recipe import Recipe
from reproduction.ladder_findings import THEORY, drawings, statements
from reproduction.presets import DELTA, Preset
from reproduction.run_store import RunStore
from reproduction.training import Setup, Task, warm_up_and_decay

__all__ = ["TITLE", "drawings", "measure", "settings", "statements"]

TITLE = "The ladder: averages of equal runs, by joint release alone"


@dataclass(frozen=True)
class Ladder:
    """N runs of equal settings, which averages of them are made, and how often all of it is repeated."""

    name: str
    clip_norm: float
    noise_multiplier: float
    rates: tuple[float, ...]
    runs: int
    averaged: tuple[int, ...]  # the numbers k, the first 1, the last all
    repetitions: int

    def __post_init__(self) -> None:
        assert self.runs <= len(self.rates), "the ε of one run is that of at least one step of the run of σ/√N"

    @property
    def steps(self) -> int:
        return len(self.rates)

    @property
    def equal_runs(self) -> list[str]:
        return [f"rung-{number:02}" for number in range(1, self.runs + 1)]

    def setups(self) -> dict[str, Setup]:
        """The equal runs, and for each k > 1 one run of the noise σ/√k, whose μ is that of k of them."""
        setups = {name: self._setup(1) for name in self.equal_runs}
        return setups | {f"retrained-{k}": self._setup(k) for k in self.averaged[1:]}

    def _setup(self, k: int) -> Setup:
        kept = tuple(sorted({*self.prefix_steps} - {self.steps})) if k == self.runs else ()
        noise = self.noise_multiplier / math.sqrt(k)
        return Setup(clip_norm=self.clip_norm, noise_multiplier=noise, rates=self.rates, keep=kept)

    @property
    def prefix_steps(self) -> list[int]:
        """How far the run of σ/√N gets within the ε of each k: μ² = t·(2/σ)²·N ≤ T·(2/σ)²·k."""
        return [self.steps * k // self.runs for k in self.averaged]

    def average(self, k: int) -> Recipe:
        """The first k runs: the averages are nested."""
        return Recipe.of({f"{name}@{self.steps}": 1 / k for name in self.equal_runs[:k]})

    def retrained(self, k: int) -> Recipe:
        return self.average(1) if k == 1 else Recipe.of({f"retrained-{k}@{self.steps}": 1.0})

    def prefix(self, step: int) -> Recipe:
        return Recipe.of({f"retrained-{self.runs}@{step}": 1.0})


def ladders(preset: Preset) -> dict[str, Ladder]:
    """Of MNIST and of CIFAR-10."""
    small, large = preset.mnist, preset.cifar
    rates = warm_up_and_decay(4.0, small.steps)
    return {
        "mnist": Ladder(
            "mnist-ladder", 2.0, 512 * small.noise, rates, small.rungs, _averaged(small.rungs), small.seeds
        ),
        "cifar10": Ladder(
            "cifar10-ladder", 2.0, 32.0, (0.1,) * large.steps, large.rungs, _averaged(large.rungs), large.seeds
        ),
    }


def _averaged(runs: int) -> tuple[int, ...]:
    return tuple(sorted({1, runs, *(k for k in THEORY if k <= runs)}))


def settings(store: RunStore) -> dict[str, Any]:
    common = {"delta": DELTA, "adjacency": "replace_one", "batch": "every record in every step"}
    described = {name: asdict(ladder) for name, ladder in ladders(store.preset).items()}
    return {**common, **described, "preset": store.preset.document()}


def measure(store: RunStore) -> dict[str, Any]:
    made = ladders(store.preset)
    return {name: measure_task(store, store.task(name), made[name]) for name in store.data_sets(*made)}


def measure_task(store: RunStore, task: Task, ladder: Ladder) -> dict[str, Any]:
    """Train, account for, plan and score the ladder of one data set."""
    every = [store.portfolio(task, ladder.name, ladder.setups(), repeat=r) for r in range(ladder.repetitions)]
    accounts = _accounts(every[0], ladder)
    return {
        "described": task.described,
        "papers_size": task.papers_size,
        "records": task.records,
        "noise_multiplier": ladder.noise_multiplier,
        "rates": ladder.rates,
        "steps": ladder.steps,
        "averaged": ladder.averaged,
        **accounts,
        **_scored(store, task, ladder, every),
    }


def _accounts(portfolio: Portfolio, ladder: Ladder) -> dict[str, Any]:
    """What everything costs, and what is planned: the same in every repetition."""

    def joint_release(recipe: Recipe) -> Candidate:
        return candidate(portfolio, recipe, delta=DELTA, theorem="joint_release")

    averages = [ladder.average(k) for k in ladder.averaged]
    joint = [joint_release(recipe) for recipe in averages]
    assumed = [candidate(portfolio, recipe, delta=DELTA, theorem="merged_trajectory") for recipe in averages]
    epsilons = [each.profile.epsilon(DELTA) for each in joint]
    plans = [_planned(portfolio, ladder, epsilon) for epsilon in epsilons]
    prefixes = [joint_release(ladder.prefix(step)) for step in ladder.prefix_steps]
    return {
        "mus": [each.bound.mu for each in joint],
        "epsilons": epsilons,
        "proved": [each.proved for each in joint],
        "assumed_mus": [each.bound.mu for each in assumed],
        "assumed_proved": [each.proved for each in assumed],
        "retrained_mus": [joint_release(ladder.retrained(k)).bound.mu for k in ladder.averaged],
        "planned": [len(made.exposure.steps) for made in plans],
        "planned_average": [_is(made, average) for made, average in zip(plans, averages, strict=True)],
        "prefix_steps": ladder.prefix_steps,
        "prefix_epsilons": [each.profile.epsilon(DELTA) for each in prefixes],
    }


def _scored(store: RunStore, task: Task, ladder: Ladder, every: Sequence[Portfolio]) -> dict[str, Any]:
    """Accuracies [repetition][k], and what the models of all repetitions have in common and not."""
    averages, retrained = ([make(k) for k in ladder.averaged] for make in (ladder.average, ladder.retrained))
    prefixes = [ladder.prefix(step) for step in ladder.prefix_steps]
    alone = [Recipe.of({f"{name}@{ladder.steps}": 1.0}) for name in ladder.equal_runs]
    recipes = [*averages, *retrained, *prefixes, *alone]
    scores = np.array([store.scores(task, portfolio, recipes).mean(axis=0) for portfolio in every])
    average, once, shorter, single = np.split(scores, np.arange(1, 4) * len(averages), axis=1)
    repeated = {
        name: [Repeated.of(every, recipe) for recipe in models]
        for name, models in (("averages", averages), ("retrained", retrained))
    }
    profiles = [candidate(every[0], recipe, delta=DELTA, theorem="joint_release").profile for recipe in averages]
    chances = {
        name: drawn_instead(profiles, found.mean(axis=0)) for name, found in (("rungs", average), ("models", once))
    }
    return {
        "accuracies": {
            "averages": average,
            "retrained": once,
            "selected rungs": average @ chances["rungs"].T,
            "selected models": once @ chances["models"].T,
            "prefixes": shorter,
        },
        "chances": chances,
        "single_runs": single,
        "deviations": {name: [each.deviation for each in models] for name, models in repeated.items()},
        "overall": {
            name: [float(np.mean([score(each.mean) for score in task.evaluators])) for each in models]
            for name, models in repeated.items()
        },
    }


def drawn_instead(profiles: Sequence[PrivacyProfile], scores: Array) -> Array:
    """In place of each candidate, the best draw among the others that costs no more: [candidate][probabilities].

    The linear program of random selection (theory 3), solved for the scores themselves, which favours the
    draw. NaN where no draw among the others is as cheap.
    """
    chances = np.full((len(profiles), len(profiles)), np.nan)
    for place, profile in enumerate(profiles):
        others = [other for other in range(len(profiles)) if other != place]
        epsilon = profile.epsilon(DELTA)
        costs = np.array([profiles[other].deltas(epsilon) for other in others]).T.reshape(2, len(others))
        found = best_mixture(costs, scores[others], DELTA) if others else None
        if found is not None:
            chances[place] = 0.0
            for which, chance in zip(found.indices, found.probabilities, strict=True):
                chances[place, others[which]] = chance
    return chances


@dataclass(frozen=True)
class Repeated:
    """One recipe in every repetition: the mean model, and how far a weight lies from it (root mean square)."""

    mean: dict[str, Array]
    deviation: float

    @classmethod
    def of(cls, portfolios: Sequence[Portfolio], recipe: Recipe) -> Repeated:
        tensors = portfolios[0].saved(recipe.names[0]).tensors
        mean, squares = {}, 0.0
        for tensor in tensors:  # one by one: a network need not fit into memory as often as it was trained
            merged = np.array([_merged(portfolio, recipe, tensor) for portfolio in portfolios])
            mean[tensor] = merged.mean(axis=0)
            squares += float(np.square(merged - mean[tensor], dtype=float).sum())
        degrees = (len(portfolios) - 1) * sum(array.size for array in mean.values())
        return cls(mean, math.sqrt(squares / degrees) if degrees else math.nan)


def _merged(portfolio: Portfolio, recipe: Recipe, tensor: str) -> Array:
    def read(name: str, tensor: str) -> Array:
        return StoredModel.of(portfolio, name).read(tensor)

    return combined(recipe, [tensor], (), read)[tensor].rounded()


def _planned(portfolio: Portfolio, ladder: Ladder, epsilon: float) -> Plan:
    """What the planner releases of the equal runs for an ε, rounded up as somebody would state it."""
    equal = replace(portfolio, runs=tuple(run for run in portfolio.runs if run.id in ladder.equal_runs))
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 4)
    return plan(equal, Guarantee(epsilon=math.ceil(epsilon / unit) * unit, delta=DELTA))


def _is(made: Plan, average: Recipe) -> bool:
    """Whether a plan releases this average, without a draw."""
    recipe = made.candidates[0].recipe
    same = recipe.names == average.names and np.allclose(recipe.weights, average.weights, rtol=1e-9)
    return len(made.candidates) == 1 and bool(same)
