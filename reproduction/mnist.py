"""MNIST: three private logistic regressions, ε over all their mixtures, and accuracy against ε (Figures 2 and 3).

Guarantees: the paper's own settings, full batch, with Opacus; every repetition has noise of its own, where the paper
fixes one seed. Linear combination is drawn by the paper's accounting, assumed, beside what is proved.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.planning.analysis import Accounting, Face, Panel
from dpmerge.planning.feasible_weights import lattice
from dpmerge.report.plots import Drawing, Heatmaps, values
from reproduction.pareto import ASSUMED_PLD, ASSUMED_RDP, SELECT_PLD, SELECT_RDP, pareto
from reproduction.pareto_findings import pareto_drawing, pareto_statements
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.statements import Statement, Verdict, all_hold, difference
from reproduction.training import Setup, warm_up_and_decay

TITLE = "MNIST: three logistic regressions and all their mixtures"

RUNS = "mnist-paper"
"""Under this name the store trains the three runs, for other experiments too."""

PEAK_RATE = 4.0
_COARSE = 0.2  # a step in ε that a user would call a gap


def setups(store: RunStore) -> dict[str, Setup]:
    """The paper's three runs: one with another clip norm and the same ε, one with more noise."""
    scale = store.preset.mnist
    rates = warm_up_and_decay(PEAK_RATE, scale.steps)
    settings = {"c2-s32": (2.0, 32.0), "c4-s32": (4.0, 32.0), "c2-s64": (2.0, 64.0)}
    return {
        name: Setup(clip_norm=clip_norm, noise_multiplier=noise * scale.noise, rates=rates)
        for name, (clip_norm, noise) in settings.items()
    }


def settings(store: RunStore) -> dict[str, Any]:
    scale = store.preset.mnist
    return {
        "task": store.mnist.described,
        "records": store.mnist.records,
        "public images": scale.tests,
        "batch": "every record in every step",
        "adjacency": "replace_one",
        "delta": DELTA,
        "repetitions": scale.seeds,
        "weights": f"all multiples of 1/{scale.resolution}",
        "runs": {name: setup.document() for name, setup in setups(store).items()},
    }


def measure(store: RunStore) -> dict[str, Any]:
    scale = store.preset.mnist
    found = pareto(
        store, store.mnist, RUNS, setups(store), repeats=scale.seeds, resolution=scale.resolution
    )  # fmt: skip
    return {"described": store.mnist.described, **found}


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    heatmaps = Heatmaps(
        name="mnist-heatmaps",
        heading="What does each mixture of the three models cost?",
        words=(
            f"Each point of a triangle is a mixture of three models, each corner one of them; the colour is its ε at "
            f"δ = {numbers['delta']:g}. Random selection draws one of the models with these probabilities, linear "
            "combination averages them with these weights. RDP is read through the paper's conversion to (ε, δ), PLD "
            "is exact. Linear combination is accounted for as in the paper: assumed, not proved here."
        ),
        face=face(numbers),
        note=numbers["described"],
    )
    frontiers = pareto_drawing(
        numbers,
        name="mnist-frontiers",
        heading="How accurate a mixture does each privacy level allow?",
        note=numbers["described"],
    )
    return [heatmaps, frontiers]


def face(numbers: dict[str, Any]) -> Face:
    """ε over the simplex: random selection and linear combination, each by RDP and PLD."""
    resolution = int(numbers["resolution"])
    places = np.rint(lattice(3, resolution) * resolution).astype(int)

    def spread(costs: Array) -> Array:
        panel = np.full((resolution + 1, resolution + 1), np.nan)
        panel[places[:, 1], places[:, 0]] = costs
        return panel

    accountings: tuple[tuple[Accounting, str, str], ...] = (
        ("rdp", SELECT_RDP, ASSUMED_RDP),
        ("pld", SELECT_PLD, ASSUMED_PLD),
    )
    panels = []
    for accounting, drawn, _ in accountings:
        costs = spread(values(numbers["epsilons"][drawn]))
        panels.append(Panel(f"random selection, {accounting.upper()}", "select", accounting, None, True, costs))
    for accounting, _, merged in accountings:
        costs = spread(values(numbers["epsilons"][merged]))
        name = f"linear combination, {accounting.upper()}"
        panels.append(Panel(name, "combine", accounting, "merged_trajectory", False, costs))
    first, second, third = numbers["names"]
    return Face((first, second, third), resolution, tuple(panels))


def statements(numbers: dict[str, Any]) -> list[Statement]:
    return [
        _same_cost(numbers),
        _flexible(numbers),
        *pareto_statements(numbers, source="paper, Figure 3"),
    ]


def _same_cost(numbers: dict[str, Any]) -> Statement:
    """Of the three models: one differs from the first in what privacy does not depend on, one in what it does."""
    costs, accuracies = values(numbers["model_epsilons"]["pld"]), values(numbers["accuracies"]).mean(axis=2)
    of_models = [difference(column) for column in accuracies.T]
    other_clip, more_noise = (difference(accuracies[:, place] - accuracies[:, 0]) for place in (1, 2))
    kinds = [other_clip.kind, more_noise.kind]
    verdict: Verdict = all_hold([kind != "within noise" for kind in kinds])
    if abs(costs[1] / costs[0] - 1) > 1e-9 or costs[2] >= costs[0]:
        verdict = "disagrees"
    elif verdict == "disagrees":
        verdict = "within noise"
    listed = "; ".join(
        f"{name}: ε {cost:.4f}, accuracy {100 * found.mean:.2f} ± {100 * found.margin:.2f} %"
        for name, cost, found in zip(numbers["names"], costs, of_models, strict=True)
    )
    return Statement(
        claim=(
            "A hyperparameter that privacy does not depend on gives a model of the same ε and other utility; one that "
            "it depends on gives another trade-off."
        ),
        source="paper, section 8.2",
        verdict=verdict,
        measured=(
            f"{listed}. Twice the clip norm changes accuracy by {other_clip}, twice the noise by {more_noise} "
            "(means and 95 % confidence over the repetitions, all public images)."
        ),
    )


def _flexible(numbers: dict[str, Any]) -> Statement:
    """Between the least and the most of a method's ε, how far its mixtures lie apart."""
    ends = sorted(values(numbers["model_epsilons"]["pld"]))
    gaps = {}
    for key, name in ((SELECT_PLD, "random selection"), (ASSUMED_PLD, "linear combination (assumed)")):
        costs = np.sort(values(numbers["epsilons"][key]))
        gaps[name] = (costs[0], costs[-1], float(np.max(costs[1:] / costs[:-1])) - 1)
    spans = all(low <= ends[0] * (1 + 1e-9) and high >= ends[-1] * (1 - 1e-9) for low, high, _ in gaps.values())
    listed = "; ".join(
        f"{name} from {low:.4f} to {high:.4f}, no step larger than {100 * gap:.1f} %"
        for name, (low, high, gap) in gaps.items()
    )
    return Statement(
        claim="Both methods adapt to flexible privacy requirements between the most and the least private model.",
        source="paper, Figure 2",
        verdict=all_hold([spans and gap < _COARSE for _, _, gap in gaps.values()]),
        measured=f"ε at δ = {numbers['delta']:g} (PLD) over all mixtures: {listed}.",
        why=(
            "Random selection turns most at probabilities far below the smallest one swept here; an average costs, by "
            "what is proved, the joint release of its models whatever the weights."
        ),
    )
