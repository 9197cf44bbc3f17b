"""Accuracy against ε for all mixtures of a few trained models, as the paper draws it, beside what is proved.

Guarantees: costs are those of the recorded runs; a curve is proved, or it is called assumed. The paper's choice of
weights by their scores is repeated, not paid for (theory 5); the planner's own curve chooses without looking.
Refuses: runs that are not full batch: the paper's accounting of linear combination has no formula for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpmerge import Guarantee, Plan, Portfolio, plan
from dpmerge.accounting import (
    DEFAULT_ORDERS,
    RenyiProfile,
    gaussian_epsilon,
    merged_trajectory_mus,
    selection_epsilons,
    selection_renyi_epsilons,
)
from dpmerge.accounting.renyi import renyi_epsilon
from dpmerge.accounting.validation import Array
from dpmerge.errors import TargetOutOfReachError
from dpmerge.planning.feasible_weights import Weightings, lattice
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, usable_checkpoints
from dpmerge.terms.recipe import Recipe
from reproduction.frontiers import held_out, in_sample
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.training import Setup, Task

SELECT_RDP, SELECT_PLD = "select-rdp", "select-pld"
ASSUMED_RDP, ASSUMED_PLD = "combine-rdp", "combine-pld"
PROVED, PLANNED = "combine-proved", "planned"

BEYOND = 1.03
"""How far targets reach beyond the smallest and the largest ε."""


def pareto(
    store: RunStore,
    task: Task,
    name: str,
    setups: Mapping[str, Setup],
    *,
    repeats: int,
    resolution: int,
    targets: int = 60,
) -> dict[str, Any]:
    """Train every repetition, and measure the frontier of each method on one grid of targets.

    Costs and plans are those of the first repetition: the others have the same records, and other noise.
    """
    rows = lattice(len(setups), resolution)
    portfolios = [store.portfolio(task, name, setups, repeat=repeat) for repeat in range(repeats)]
    models = last_rungs(portfolios[0])
    costs = mixture_epsilons(models, rows)
    ends = [end for cost in costs.values() for end in (cost.min(), cost.max())]
    grid = np.geomspace(min(ends) / BEYOND, max(ends) * BEYOND, targets)
    plans = _plans(portfolios[0], grid)
    recipes = [Recipe.of(zip([model.name for model in models], row, strict=True)) for row in rows.tolist()]
    combined, expected = [], []  # accuracies of every row, [2, rows]; of every plan
    for portfolio in portfolios:
        combined.append(store.scores(task, portfolio, recipes))
        expected.append(_expected(store, task, portfolio, plans))
    singles = [halves[:, rows.argmax(axis=0)] for halves in combined]  # where all weight is one model's
    curves: dict[str, dict[str, Any]] = {}
    for curve, cost in costs.items():
        drawn = [halves @ rows.T for halves in singles] if curve in (SELECT_RDP, SELECT_PLD) else combined
        curves[curve] = {
            "held_out": [held_out(cost, halves, grid) for halves in drawn],
            "in_sample": [in_sample(cost, halves, grid) for halves in drawn],
        }
    curves[PLANNED] = {"held_out": expected, "in_sample": expected}  # chosen by no score: one as good as the other
    return {
        "delta": DELTA,
        "names": list(setups),
        "resolution": resolution,
        "epsilons": costs,
        "model_epsilons": {"pld": [m.epsilon for m in models], "rdp": [_classic_epsilon(m) for m in models]},
        "accuracies": [halves.T for halves in singles],
        "targets": grid,
        "curves": curves,
        "best": _best_merges(rows, combined, singles),
    }


def last_rungs(portfolio: Portfolio) -> list[UsableCheckpoint]:
    """The last checkpoint of each run, in their order."""
    known = usable_checkpoints(portfolio, DELTA)
    return [known.last_of(run) for run in portfolio.runs]


def mixture_epsilons(models: Sequence[UsableCheckpoint], rows: Array) -> dict[str, Array]:
    """ε of each row of probabilities or weights, by every accounting; RDP by the paper's conversion, `classic`."""
    checkpoints = tuple(model.prefix for model in models)
    renyi = np.array([RenyiProfile.of(model.profile).values for model in models])
    mus = merged_trajectory_mus(checkpoints, rows)
    return {
        SELECT_RDP: selection_renyi_epsilons(renyi, rows, DELTA, DEFAULT_ORDERS, "classic"),
        SELECT_PLD: selection_epsilons([model.profile for model in models], rows, DELTA),
        ASSUMED_RDP: renyi_epsilon(DEFAULT_ORDERS, mus[:, np.newaxis] ** 2 / 2 * DEFAULT_ORDERS, DELTA, "classic"),
        ASSUMED_PLD: gaussian_epsilon(mus, DELTA),
        PROVED: Weightings(checkpoints, "joint_release").epsilons(rows, DELTA),
    }


def _classic_epsilon(model: UsableCheckpoint) -> float:
    return RenyiProfile.of(model.profile).converted("classic").epsilon(DELTA)


def _plans(portfolio: Portfolio, targets: Array) -> list[Plan | None]:
    """For each target what our planner would release; None where nothing meets it."""
    found: list[Plan | None] = []
    for target in targets.tolist():
        try:
            found.append(plan(portfolio, Guarantee(epsilon=target, delta=DELTA), method="mix"))
        except TargetOutOfReachError:
            found.append(None)
    return found


def _expected(store: RunStore, task: Task, portfolio: Portfolio, plans: Sequence[Plan | None]) -> list[float]:
    """Accuracy expected over the draw of each plan, on all images."""
    recipes = list(dict.fromkeys(candidate.recipe for made in plans if made for candidate in made.candidates))
    found = store.scores(task, portfolio, recipes).mean(axis=0)
    scores = dict(zip(recipes, found.tolist(), strict=True))
    return [
        sum(p * scores[c.recipe] for p, c in zip(made.probabilities, made.candidates, strict=True)) if made else np.nan
        for made in plans
    ]


def _best_merges(rows: Array, combined: Sequence[Array], singles: Sequence[Array]) -> dict[str, Any]:
    """The best merge of two or more models and the best model: chosen on one half, measured on the other, both ways.

    And as in the paper: chosen and measured on the same images, all of them.
    """
    merges = np.flatnonzero(rows.max(axis=1) < 1)
    best: dict[str, Any] = {"merge": [], "model": [], "weights": [], "in_sample": {"merge": [], "model": []}}
    for halves, models in zip(combined, singles, strict=True):
        chosen = merges[halves[:, merges].argmax(axis=1)]
        alone = models.argmax(axis=1)
        best["merge"].append(float(np.mean([halves[1, chosen[0]], halves[0, chosen[1]]])))
        best["model"].append(float(np.mean([models[1, alone[0]], models[0, alone[1]]])))
        best["weights"].append(rows[chosen])
        best["in_sample"]["merge"].append(float(halves[:, merges].mean(axis=0).max()))
        best["in_sample"]["model"].append(float(models.mean(axis=0).max()))
    return best
