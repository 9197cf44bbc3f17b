"""Checkpoints of one run: random selection among them, as in the paper's appendix, and averages of them.

The paper keeps them "at training steps" 1, 2, 3 and 12, 16, 20: read as epochs, and, beside it, as single steps.

Guarantees: selection is accounted for though the checkpoints share their noise: it needs no independence. An average
costs exactly its latest checkpoint (theory 2.4), and that is checked here, not taken for granted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpmerge.accounting import (
    DEFAULT_ORDERS,
    Adjacency,
    DpSgd,
    LinearCombination,
    RenyiProfile,
    joint_release,
    selection_epsilons,
    selection_renyi_epsilons,
)
from dpmerge.accounting.validation import Array
from dpmerge.planning.feasible_weights import Weightings, lattice
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, usable_checkpoints
from dpmerge.terms.recipe import Recipe
from reproduction.checkpoints_findings import COMBINED, SELECT_PLD, SELECT_RDP, drawings, statements
from reproduction.frontiers import held_out, in_sample
from reproduction.presets import DELTA, CifarScale, MnistScale
from reproduction.run_store import RunStore
from reproduction.training import Setup, steps_per_epoch

__all__ = ["TITLE", "drawings", "measure", "settings", "statements"]

TITLE = "Checkpoints of one run: selection among them, and averages of them"

CLIP_NORM = 2.0
"""The paper does not say which; it enters no ε."""

TARGETS = 60
BATCH = 256  # the paper's
_DELTAS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
_COMPARED = 4  # weights are multiples of a quarter
_BEYOND = 1.03


STEPS = "-steps"
"""Ends the name of a run whose checkpoints are kept after so many steps; others are kept after so many epochs."""


def setups(store: RunStore) -> dict[str, Setup]:
    """For each data set one run of Poisson batches kept after three of its epochs, and one after three of its steps."""
    mnist, cifar = store.preset.mnist, store.preset.cifar
    last = cifar.steps
    kept = {"mnist": (1, 2, 3), "cifar10": (round(0.6 * last), round(0.8 * last), last)}
    epochs = {name: steps_per_epoch(scale.records, scale.batch) for name, scale in _scales(store).items()}
    made = {}
    for name in store.data_sets("mnist", "cifar10"):
        rate, noise, batch = (0.1, 0.5, mnist.batch) if name == "mnist" else (0.01, 0.6, cifar.batch)
        for ending, unit in (("", epochs[name]), (STEPS, 1)):
            steps = [unit * count for count in kept[name]]
            made[name + ending] = Setup(
                clip_norm=CLIP_NORM,
                noise_multiplier=noise,
                rates=(rate,) * steps[-1],
                keep=tuple(steps[:-1]),
                batch=batch,
            )
    return made


def _scales(store: RunStore) -> dict[str, MnistScale | CifarScale]:
    return {"mnist": store.preset.mnist, "cifar10": store.preset.cifar}


def settings(store: RunStore) -> dict[str, Any]:
    tasks = {name: store.task(name.removesuffix(STEPS)) for name in setups(store)}
    return {
        **{
            name: {
                "task": tasks[name].described,
                "records": tasks[name].records,
                "run": setup.document() | {"rates": setup.rates[0], "steps": len(setup.rates)},
            }
            for name, setup in setups(store).items()
        },
        "the paper's steps": f"read as epochs; in the runs whose names end in {STEPS}, as steps",
        "batches": "Poisson",
        "adjacency": "add_remove: no Rényi divergence is known for Poisson batches if a record is replaced",
        "divisor": "the expected batch size, vouched for as fixed without the data",
        "clip norm": "the paper names none",
        "delta": DELTA,
    }


def measure(store: RunStore) -> dict[str, Any]:
    return {
        "delta": DELTA,
        "tasks": {name: measure_run(store, name, setup) for name, setup in setups(store).items()},
    }


def measure_run(store: RunStore, name: str, setup: Setup) -> dict[str, Any]:
    """Costs and frontiers of every mixture of the kept checkpoints; costs are the same in every repetition."""
    data = name.removesuffix(STEPS)
    task, scale = store.task(data), _scales(store)[data]
    runs = f"{data}-checkpoints{name.removeprefix(data)}"
    portfolios = [store.portfolio(task, runs, {"run": setup}, repeat=repeat) for repeat in range(scale.seeds)]
    models = usable_checkpoints(portfolios[0], DELTA).checkpoints
    rows = lattice(len(models), scale.resolution)
    costs = _epsilons(models, rows)
    ends = [end for cost in costs.values() for end in (cost.min(), cost.max())]
    targets = np.geomspace(min(ends) / _BEYOND, max(ends) * _BEYOND, TARGETS)
    recipes = [Recipe.of(zip([model.name for model in models], row, strict=True)) for row in rows.tolist()]
    recipes.append(Recipe.of({model.name: 1 / len(models) for model in models}))
    found = [store.scores(task, portfolio, recipes) for portfolio in portfolios]
    averaged = [halves[:, :-1] for halves in found]
    singles = [halves[:, rows.argmax(axis=0)] for halves in averaged]
    drawn = [halves @ rows.T for halves in singles]
    accuracies = {SELECT_RDP: drawn, SELECT_PLD: drawn, COMBINED: averaged}
    usual = "" if setup.batch == BATCH else f" (not {BATCH})"
    steps = [model.saved.step for model in models]
    epoch = steps_per_epoch(task.records, setup.batch or task.records)
    return {
        "described": f"{task.described}; Poisson batches of {setup.batch}{usual}",
        "papers_size": task.papers_size,
        "steps": steps,
        **({} if name.endswith(STEPS) else {"epochs": [step // epoch for step in steps]}),
        "epsilons": {
            "pld": [model.epsilon for model in models],
            "rdp": [RenyiProfile.of(model.profile).converted("classic").epsilon(DELTA) for model in models],
            "replaced": [_replaced(model) for model in models],
        },
        "accuracies": [halves.T for halves in singles],
        "targets": targets,
        "mixtures": costs,
        "curves": {
            key: {
                "held_out": [held_out(costs[key], halves, targets) for halves in of_rows],
                "in_sample": [in_sample(costs[key], halves, targets) for halves in of_rows],
            }
            for key, of_rows in accuracies.items()
        },
        "latest": _latest(models),
        "average": {
            "equal": [float(halves[:, -1].mean()) for halves in found],
            **_best_averages(rows, averaged),
        },
    }


def _epsilons(models: Sequence[UsableCheckpoint], rows: Array) -> dict[str, Array]:
    """ε of each row: drawn from, by RDP (the paper's conversion, `classic`) and PLD; averaged, by joint release."""
    renyi = np.array([RenyiProfile.of(model.profile).values for model in models])
    return {
        SELECT_RDP: selection_renyi_epsilons(renyi, rows, DELTA, DEFAULT_ORDERS, "classic"),
        SELECT_PLD: selection_epsilons([model.profile for model in models], rows, DELTA),
        COMBINED: Weightings(tuple(model.prefix for model in models), "joint_release").epsilons(rows, DELTA),
    }


def _replaced(model: UsableCheckpoint) -> float:
    """What a checkpoint costs by PLD if a record is replaced, as in the paper; by RDP nobody knows."""
    run = model.prefix.run
    assert isinstance(run, DpSgd), "its steps are known"
    return replace(run, adjacency=Adjacency.REPLACE_ONE).profile(model.saved.step).epsilon(DELTA)


def _latest(models: Sequence[UsableCheckpoint]) -> dict[str, Any]:
    """By how much the joint release of an average differs from its latest checkpoint, over weights and δ."""
    checkpoints = [model.prefix for model in models]
    worst, compared = 0.0, 0
    for row in lattice(len(models), _COMPARED):
        bound = joint_release(LinearCombination(checkpoints=checkpoints, weights=row.tolist()))
        latest = models[int(np.flatnonzero(row)[-1])].profile
        for delta in _DELTAS:
            cost = bound.epsilon(delta)
            assert cost is not None, "joint release has a profile of one run's checkpoints"
            worst = max(worst, abs(cost - latest.epsilon(delta)))
            compared += 1
    return {"largest difference": worst, "compared": compared, "deltas": list(_DELTAS)}


def _best_averages(rows: Array, averaged: Sequence[Array]) -> dict[str, list[float]]:
    """The best average, chosen on one half and measured on the other, and the last checkpoint on the same images."""
    merges = np.flatnonzero(rows.max(axis=1) < 1)
    best: dict[str, list[float]] = {"best": [], "last": []}
    for halves in averaged:
        chosen = merges[halves[:, merges].argmax(axis=1)]
        best["best"].append(float(np.mean([halves[1, chosen[0]], halves[0, chosen[1]]])))
        best["last"].append(float(halves[:, rows[:, -1].argmax()].mean()))
    return best
