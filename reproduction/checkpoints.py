"""Checkpoints of one run: random selection among them, as in the paper's appendix, and averages of them.

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
from dpmerge.report.plots import COLOURS, Drawing, Plot, Series, values
from dpmerge.terms.recipe import Recipe
from reproduction.frontiers import held_out, in_sample
from reproduction.pareto import monotone
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.statements import Statement, Verdict, all_hold, difference, margins
from reproduction.training import Setup, Task, steps_per_epoch

TITLE = "Checkpoints of one run: selection among them, and averages of them"

CLIP_NORM = 2.0
"""The paper does not say which; it enters no ε."""

SELECT_RDP, SELECT_PLD, COMBINED = "select-rdp", "select-pld", "combine"
TARGETS = 60
BATCH = 256  # the paper's
_DELTAS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
_COMPARED = 4  # weights are multiples of a quarter
_BEYOND = 1.03


def setups(store: RunStore) -> dict[str, Setup]:
    """One run of Poisson batches for each data set, kept after three of its epochs."""
    mnist, cifar = store.preset.mnist, store.preset.cifar
    last = cifar.steps
    return {
        "mnist": _setup(mnist.records, mnist.batch, (1, 2, 3), rate=0.1, noise=0.5),
        "cifar10": _setup(
            cifar.records, cifar.batch, (round(0.6 * last), round(0.8 * last), last), rate=0.01, noise=0.6
        ),
    }


def _setup(records: int, batch: int, epochs: Sequence[int], *, rate: float, noise: float) -> Setup:
    steps = [epoch * steps_per_epoch(records, batch) for epoch in epochs]
    return Setup(
        clip_norm=CLIP_NORM,
        noise_multiplier=noise,
        rates=(rate,) * steps[-1],
        keep=tuple(steps[:-1]),
        batch=batch,
    )


def settings(store: RunStore) -> dict[str, Any]:
    runs = {
        name: setup.document() | {"rates": setup.rates[0], "steps": len(setup.rates)}
        for name, setup in setups(store).items()
    }
    return {
        "mnist": {"task": store.mnist.described, "records": store.mnist.records, "run": runs["mnist"]},
        "cifar10": {"task": store.cifar10.described, "records": store.cifar10.records, "run": runs["cifar10"]},
        "batches": "Poisson",
        "adjacency": "add_remove: no Rényi divergence is known for Poisson batches if a record is replaced",
        "divisor": "the expected batch size, vouched for as fixed without the data",
        "clip norm": "the paper names none",
        "delta": DELTA,
    }


def measure(store: RunStore) -> dict[str, Any]:
    mnist, cifar = store.preset.mnist, store.preset.cifar
    setup = setups(store)
    return {
        "delta": DELTA,
        "tasks": {
            "mnist": measure_task(
                store, store.mnist, "mnist-checkpoints", setup["mnist"], mnist.seeds, mnist.resolution
            ),
            "cifar10": measure_task(
                store, store.cifar10, "cifar10-checkpoints", setup["cifar10"], cifar.seeds, cifar.resolution
            ),
        },
    }


def measure_task(store: RunStore, task: Task, name: str, setup: Setup, repeats: int, resolution: int) -> dict[str, Any]:
    """Costs and frontiers of every mixture of the kept checkpoints; costs are the same in every repetition."""
    portfolios = [store.portfolio(task, name, {"run": setup}, repeat=repeat) for repeat in range(repeats)]
    models = usable_checkpoints(portfolios[0], DELTA).checkpoints
    rows = lattice(len(models), resolution)
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
    return {
        "described": f"{task.described}; Poisson batches of {setup.batch}{usual}",
        "steps": [model.saved.step for model in models],
        "epochs": [model.saved.step // steps_per_epoch(task.records, setup.batch or task.records) for model in models],
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


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    return [_drawing(name, found, numbers["delta"]) for name, found in numbers["tasks"].items()]


def _drawing(name: str, found: dict[str, Any], delta: float) -> Plot:
    targets, accuracies = values(found["targets"]), values(found["accuracies"]).mean(axis=2)

    def curve(key: str, label: str, colour: str) -> Series:
        utilities = values(found["curves"][key]["held_out"])
        return Series(
            name=label,
            x=targets,
            y=utilities.mean(axis=0),
            error=None if key == SELECT_RDP else _band(utilities),
            colour=colour,
            marks="dots" if key == SELECT_RDP else "none",
            steps=key == COMBINED,
        )

    series = (
        curve(SELECT_RDP, "random selection, RDP", COLOURS["select"]),
        curve(SELECT_PLD, "random selection, PLD", COLOURS["select"]),
        curve(COMBINED, "averages, at the cost of the latest", COLOURS["combine"]),
        Series(
            name="the checkpoints themselves, PLD",
            x=values(found["epsilons"]["pld"]),
            y=accuracies.mean(axis=0),
            error=_band(accuracies),
            colour=COLOURS["models"],
            marks="diamonds",
            line=False,
        ),
    )
    epochs = ", ".join(f"{int(epoch)}" for epoch in found["epochs"])
    return Plot(
        name=f"checkpoints-{name}",
        heading="What do the earlier checkpoints of a run add to its last one?",
        words=(
            f"For each privacy level ε (δ = {delta:g}, records added or removed) the accuracy of the best mixture of "
            f"one run's checkpoints after epochs {epochs} that costs no more: chosen on one half of the public images, "
            f"measured on the other, mean of {len(accuracies)} repetitions with 95 % confidence. Random selection "
            "publishes one checkpoint drawn at random, RDP (dots) read through the paper's conversion; an average "
            "costs what its latest checkpoint does. To choose by accuracy is not paid for here."
        ),
        across=f"ε at δ = {delta:g} (one record added or removed)",
        up="accuracy on public images",
        series=series,
        log_x=True,
        note=found["described"],
    )


def _band(repetitions: Array) -> Array | None:
    return margins(repetitions) if len(repetitions) > 1 else None


def statements(numbers: dict[str, Any]) -> list[Statement]:
    found = []
    for name, of in numbers["tasks"].items():
        source = f"paper, Figure 5 ({name})"
        curves = {"by PLD": SELECT_PLD, "by RDP": SELECT_RDP}
        frontier = monotone({label: values(of["curves"][key]["held_out"]) for label, key in curves.items()}, source)
        claim = "Random selection works for correlated checkpoints of one run: its frontier rises with ε."
        listed = "; ".join(
            f"after epoch {int(epoch)} ε is {pld:.3f} (RDP {rdp:.3f}; {replaced:.3f} if a record is replaced)"
            for epoch, pld, rdp, replaced in zip(
                of["epochs"], *(of["epsilons"][key] for key in ("pld", "rdp", "replaced")), strict=True
            )
        )
        measured = f"By PLD, a record added or removed, {listed}. {frontier.measured}"
        found += [
            replace(frontier, claim=claim, measured=measured),
            _pld_below_rdp(of, source),
            _costs_the_latest(of, name),
            _averages(of, name),
        ]
    return found


def _pld_below_rdp(of: dict[str, Any], source: str) -> Statement:
    rdp, pld = values(of["mixtures"][SELECT_RDP]), values(of["mixtures"][SELECT_PLD])
    return Statement(
        claim="ε by PLD is smaller than by RDP for every selection among the checkpoints.",
        source=source,
        verdict=all_hold(pld <= rdp),
        measured=(
            f"At {np.count_nonzero(pld <= rdp):,} of {pld.size:,} mixtures; RDP costs {np.min(rdp / pld):.2f} to "
            f"{np.max(rdp / pld):.2f} times as much."
        ),
    )


def _costs_the_latest(of: dict[str, Any], name: str) -> Statement:
    latest = of["latest"]
    worst = float(latest["largest difference"])
    deltas = values(latest["deltas"])
    return Statement(
        claim="Accounting gives an average of checkpoints no less than the least private of them: exactly that.",
        source=f"paper, appendix E.3 ({name})",
        verdict="agrees" if worst <= 1e-9 else "disagrees",
        measured=(
            f"Over {int(latest['compared'])} pairs of weights and δ from {deltas.min():g} to {deltas.max():g} the "
            f"joint release of an average differs from its latest checkpoint by at most {worst:.2g} in ε."
        ),
        why="Accounting covers every iterate of a run: earlier checkpoints are already paid for. What an average costs "
        "in truth may be less, but nothing here proves it.",
    )


def _averages(of: dict[str, Any], name: str) -> Statement:
    average = {key: values(found) for key, found in of["average"].items()}
    best, equal = (difference(average[key] - average["last"]) for key in ("best", "equal"))
    verdicts: dict[str, Verdict] = {"higher": "agrees", "lower": "disagrees", "within noise": "within noise"}
    verdict = verdicts[best.kind]
    if verdict != "agrees" and equal.kind == "higher":
        verdict = "agrees in part"
    accuracies = values(of["accuracies"]).mean(axis=2)
    still = difference(accuracies[:, -1] - accuracies[:, -2])
    return Statement(
        claim="Averaging the checkpoints of a run can improve its accuracy at the price of the last.",
        source=f"paper, appendix E.3 ({name})",
        verdict=verdict,
        measured=(
            f"The last checkpoint has an accuracy of {average['last'].mean():.4f}. The best average, chosen on one "
            f"half of the images and measured on the other, differs from it by {best}, the plain average, chosen "
            f"without looking, by {equal}."
        ),
        why=f"The run still improves between its last two checkpoints, by {still}: older weights hold it back."
        if verdict != "agrees" and still.kind == "higher"
        else "",
    )
