"""Train, plan and score one portfolio: everything of it that the page shows, as one document.

Guarantees: what was trained or scored is kept in the cache and found again; plans are always made anew. A plan depends
on the records of the runs alone, and those say the same for every seed (which is checked), so that it is made once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpmerge import Guarantee, Plan, Portfolio, plan
from dpmerge.errors import TargetOutOfReachError
from dpmerge.planning.noise_prediction import precision_weights, predicted_noise
from dpmerge.planning.usable_checkpoints import usable_checkpoints
from dpmerge.portfolio.inspection import cost_of
from dpmerge.terms.recipe import Recipe
from reproduction.presets import DELTA, PRESETS
from reproduction.run_store import ImageSource, RunStore
from reproduction.training import Task
from usefulness.portfolios import Kind, Scale
from usefulness.scoring import best_by_test, expected, least_private, targets

FINISHED = 0.8
"""From this share of its steps on, a checkpoint is late."""

LESS_NOISE = 3.0
"""How many times less predicted noise made up for checkpoints that are not."""


@dataclass
class Trained:
    """One portfolio kind, trained once a seed, and every score asked of it so far."""

    tasks: list[Task]
    portfolios: list[Portfolio]
    stores: list[RunStore]
    scores: dict[str, list[float]] = field(default_factory=dict)  # by the recipe's digest: one a seed

    def accuracy(self, recipe: Recipe) -> list[float]:
        """On all test images, one number a seed."""
        if recipe.digest not in self.scores:
            found = zip(self.stores, self.tasks, self.portfolios, strict=True)
            self.scores[recipe.digest] = [
                float(store.scores(task, portfolio, [recipe]).mean()) for store, task, portfolio in found
            ]
        return self.scores[recipe.digest]


def train(
    kind: Kind, scale: Scale, seeds: Sequence[int], images: ImageSource, cache: Path, tell: Callable[[str], object]
) -> Trained:
    """Every run of every seed, or what was kept of it."""
    tasks, portfolios, stores = [], [], []
    for seed in seeds:
        store = RunStore(cache, PRESETS["small"], images, seed, tell)
        task = kind.task(images, scale, cache, seed)
        portfolios.append(store.portfolio(task, kind.name, kind.setups(scale)))
        tasks.append(task)
        stores.append(store)
    statements = [[run.manifest.statement for run in portfolio.runs] for portfolio in portfolios]
    assert all(stated == statements[0] for stated in statements), "seeds differ in nothing that is recorded"
    return Trained(tasks, portfolios, stores)


def measured(
    kind: Kind, scale: Scale, seeds: Sequence[int], images: ImageSource, cache: Path, tell: Callable[[str], object]
) -> dict[str, Any]:
    """One portfolio, from training to the numbers of its rows."""
    begun = time.perf_counter()
    trained = train(kind, scale, seeds, images, cache, tell)
    tell(f"{kind.name}: trained, or found, in {time.perf_counter() - begun:.0f} s")
    portfolio = trained.portfolios[0]
    costs = {each.name: each.epsilon for each in usable_checkpoints(portfolio, DELTA).checkpoints}
    singles = {name: trained.accuracy(Recipe.of({name: 1.0})) for name in costs}
    finished = {(name := run.checkpoints[-1].name): costs[name] for run in portfolio.runs}
    rows = []
    for epsilon in targets(list(finished.values())):
        target = Guarantee(epsilon=epsilon, delta=DELTA)
        single = least_private(finished, epsilon)
        oracle = best_by_test(costs, singles, epsilon)
        planning = time.perf_counter()
        auto = _released(plan(portfolio, target), trained)
        took = time.perf_counter() - planning
        rows.append(
            {
                "epsilon": epsilon,
                "auto": auto,
                "single": {"checkpoint": single, "epsilon": costs[single], "accuracy": singles[single]},
                "oracle": {"checkpoints": [name for name, _ in oracle], "accuracy": [value for _, value in oracle]},
                "mix": _released(least_noise(portfolio, target), trained),
                "seconds_to_plan": round(took, 1),
            }
        )
        tell(f"{kind.name}: ε = {epsilon:g}: {auto['method']}, planned and scored in {took:.0f} s")
    return {
        "described": kind.described,
        "start": kind.start,
        "rate": kind.rate,
        "steps": portfolio.runs[0].mechanism.steps,
        "seconds_to_train": [round(sum(store.timings.values()), 1) for store in trained.stores],
        "checkpoints": {name: {"epsilon": costs[name], "accuracy": singles[name]} for name in costs},
        "targets": rows,
        "averages": [_average(portfolio, names, trained, singles, costs) for names in _averaged(finished)],
    }


def least_noise(portfolio: Portfolio, target: Guarantee) -> Plan:
    """The least predicted noise, whatever the model: mix, of late checkpoints unless others have far less noise.

    `auto` was this before it asked what it averages. It is stated here, so that the column stays what it is.
    """
    everything = plan(portfolio, target, method="mix")
    late = tuple(
        replace(run, checkpoints=tuple(c for c in run.checkpoints if c.step >= FINISHED * run.mechanism.steps))
        for run in portfolio.runs
    )
    try:
        found = plan(replace(portfolio, runs=late), target, method="mix")
    except TargetOutOfReachError:
        return everything
    noises = (found.noise_to_signal, everything.noise_to_signal)
    assert noises[0] is not None, "recorded step by step"
    assert noises[1] is not None, "recorded step by step"
    return found if noises[0] <= LESS_NOISE * noises[1] else everything


def _released(made: Plan, trained: Trained) -> dict[str, Any]:
    """What a plan would release: each candidate, and what is expected of the draw."""
    accuracies = [trained.accuracy(each.recipe) for each in made.candidates]
    return {
        "method": made.method,
        "theorem": made.theorem,
        "epsilon": made.guarantee.epsilon,
        "noise_to_signal": made.noise_to_signal,
        "candidates": [
            {"probability": p, **each.recipe.document(), "accuracy": accuracy}
            for p, each, accuracy in zip(made.probabilities, made.candidates, accuracies, strict=True)
        ],
        "accuracy": expected(made.probabilities, accuracies),
    }


def _averaged(finished: Mapping[str, float]) -> list[list[str]]:
    """The two and three least private finished models, and the two and three most private ones."""
    by_cost = sorted(finished, key=lambda name: -finished[name])
    return [by_cost[:2], by_cost[:3], by_cost[-2:], by_cost[-3:]]


def _average(
    portfolio: Portfolio,
    names: Sequence[str],
    trained: Trained,
    singles: Mapping[str, Sequence[float]],
    costs: Mapping[str, float],
) -> dict[str, Any]:
    """The average with precision weights, beside the least private model that is in it."""
    saved = [portfolio.saved(name) for name in names]
    checkpoints = [portfolio.run(each.run).at(each.step) for each in saved]
    noises = [noise for each in checkpoints if (noise := predicted_noise(each)) is not None]
    recipe = Recipe.of(dict(zip(names, map(float, precision_weights(noises)), strict=True)))
    return {
        "weights": dict(recipe.parts),
        "epsilon": cost_of(checkpoints, DELTA).epsilon,
        "accuracy": trained.accuracy(recipe),
        "singles": {name: {"epsilon": costs[name], "accuracy": singles[name]} for name in names},
    }
