"""What the probe shows: figures and statements, from its numbers alone.

Guarantees: differences are taken within a repetition, and over the targets that both methods serve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpmerge.report.plots import COLOURS, Drawing, Plot, Series, values
from dpmerge.report.styles import THEOREMS
from reproduction.presets import DELTA
from reproduction.statements import Statement, Verdict, all_hold, difference, margins

EXAMPLE = {"s64": 0.95, "s32": 0.05}

_WEIGHTS = " and ".join(f"{weight:g} of {run}" for run, weight in EXAMPLE.items())

THEORY = {"without noise": 0.945, "with noise": 0.427, "merged_trajectory": 0.519, "joint_release": 1.18}
"""theory 9.1: ε of these weights under the decaying rate, σ = 64 and 32, 20 steps."""

_LINES = {
    "hidden_state": ("linear combination with release noise, proved by hidden_state", COLOURS["combine"]),
    "selection": ("random selection of a model", COLOURS["select"]),
    "singles": ("the best single model within ε", COLOURS["models"]),
    "ladder": ("averages by joint release (the ladder)", THEOREMS[1]),
    "merged_trajectory": ("linear combination by merged_trajectory, assumed, not proved here", THEOREMS[2]),
}

_RATES = {"constant": "a constant learning rate", "decaying": "a learning rate that decays to zero"}


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    return [*(_frontier(name, found) for name, found in numbers.items()), _needed_noise(numbers)]


def _frontier(name: str, found: dict[str, Any]) -> Plot:
    targets, models = values(found["targets"]), values(found["models"]["accuracies"])
    series = []
    for key, (title, colour) in _LINES.items():
        rows = values(found["methods"][key]["accuracies"])
        error, dashed = (margins(rows) if len(rows) > 1 else None), key == "merged_trajectory"
        series.append(Series(name=title, x=targets, y=rows.mean(axis=0), colour=colour, error=error, dashed=dashed))
    costs, grey = values(list(found["models"]["epsilons"].values())), COLOURS["models"]
    trained = "models as they were trained"
    series.append(Series(name=trained, x=costs, y=models.mean(axis=0), colour=grey, marks="diamonds", line=False))
    return Plot(
        name=f"probe-{name}",
        heading=f"What is reached at each ε with {_RATES[name]}, no model looked at",
        words=(
            "Each line is what the planner releases for a target ε by one method, and the accuracy to expect of it; a "
            "line begins where its method has something to offer. Release noise lets a linear combination serve "
            "targets below the most private model. Dashed: what the paper would claim, which is not proved for these "
            f"runs. Bands: 95 % confidence over {len(models)} repetitions with other noise."
        ),
        across=f"target ε at δ = {DELTA:g} (one record replaced)",
        up="expected accuracy on public test images",
        series=tuple(series),
        log_x=True,
        note=found["described"],
    )


def _needed_noise(numbers: dict[str, Any]) -> Plot:
    """The example of theory 9.1 over its release noise; the other theorems do not count that noise."""
    constant, decaying = (numbers[name]["example"] for name in ("constant", "decaying"))
    shares = values(decaying["release_noises"])
    level = np.ones(shares.shape)
    lines = {
        "proved by hidden_state, constant rate": (values(constant["epsilons"]), THEOREMS[3]),
        "proved by hidden_state, decaying rate": (values(decaying["epsilons"]), THEOREMS[0]),
        "proved by joint release": (decaying["joint_release"] * level, THEOREMS[1]),
        "claimed by merged_trajectory: assumed, not proved here": (decaying["merged_trajectory"] * level, THEOREMS[2]),
    }
    return Plot(
        name="probe-release-noise",
        heading="How much release noise does the proof need?",
        words=(
            f"ε of one linear combination, {_WEIGHTS}, over the noise that is added to the merged model before it is "
            "released. Where the rate decays to zero the last steps have little noise of their own, and release noise "
            "takes its place. Joint release and the paper's claim do not depend on it, nor on the rates."
        ),
        across="release noise, in units of the noise of one step at the highest rate",
        up=f"ε at δ = {DELTA:g} (one record replaced)",
        series=tuple(
            Series(name=title, x=shares, y=line, colour=colour, dashed="not proved" in title)
            for title, (line, colour) in lines.items()
        ),
        note=numbers["constant"]["described"],
    )


def statements(numbers: dict[str, Any]) -> list[Statement]:
    return [
        _below(numbers),
        *(_compared(numbers, other, what) for other, what in _OTHERS.items()),
        *(_example_statement(name, found) for name, found in numbers.items()),
        _without_noise(numbers),
        _clipping(numbers),
    ]


def _below(numbers: dict[str, Any]) -> Statement:
    served, words = [], []
    for name, found in numbers.items():
        costs, methods = list(found["models"]["epsilons"].values()), found["methods"]
        least, cheapest = min(costs), int(np.argmin(costs))
        below = values(found["targets"]) < least
        proved = values(methods["hidden_state"]["proved"])[below] > 0
        others = np.isfinite([values(methods[key]["epsilons"])[below] for key in ("selection", "singles", "ladder")])
        served += [bool(proved.all()), not others.any()]
        reached = values(methods["hidden_state"]["accuracies"])[:, 0].mean()
        trained = values(found["models"]["accuracies"])[:, cheapest].mean()
        words.append(
            f"{name} rate: {proved.sum()} of {proved.size} targets below ε = {least:.3g} are met by hidden_state, "
            f"{others.any(axis=0).sum()} by other proved methods; at ε = {found['targets'][0]:.3g} with accuracy "
            f"{reached:.3f}, where the most private model has {trained:.3f}"
        )
    return Statement(
        claim="Release noise under hidden_state serves targets below the most private model, where nothing else does.",
        source="theory 9.1",
        verdict=all_hold(served),
        measured="; ".join(words) + ".",
    )


_OTHERS = {
    "selection": "random selection",
    "singles": "the best single model",
    "ladder": "averages by joint release",
    "merged_trajectory": "what merged_trajectory would allow without proof",
}


def _compared(numbers: dict[str, Any], other: str, what: str) -> Statement:
    """Paired differences of accuracy over the targets that both serve: of their mean, which decides, and of each."""
    kinds, words, noises, trained = [], [], [], []
    for name, found in numbers.items():
        mine, theirs = (found["methods"][key] for key in ("hidden_state", other))
        gained = values(mine["accuracies"]) - values(theirs["accuracies"])
        both = np.flatnonzero(np.isfinite(gained).all(axis=0))
        overall = difference(gained[:, both].mean(axis=1))
        each = [difference(gained[:, place]).kind for place in both]
        counts = ", ".join(f"{kind} at {each.count(kind)}" for kind in ("higher", "within noise", "lower"))
        kinds.append(overall.kind)
        words.append(f"{name} rate: {overall} on average; of {both.size} targets {counts}")
        trained += values(found["models"]["accuracies"]).mean(axis=0).tolist()
        ratios = (values(theirs["noise_to_signal"]) / values(mine["noise_to_signal"]))[both]
        noises.append(f"{ratios.min():.2f} to {ratios.max():.2f} times with the {name} rate")
    return Statement(
        claim=f"Where both serve a target, linear combination proved by hidden_state is no less accurate than {what}.",
        source="ours",
        verdict=_verdict(kinds),
        measured="; ".join(words) + " (by chance alone one in twenty would be higher or lower).",
        why=(
            f"The predicted noise-to-signal of {what} is {', '.join(noises)} that of the combination; the models as "
            f"they were trained have {min(trained):.3f} to {max(trained):.3f}, so far does noise matter here."
        ),
    )


def _verdict(kinds: Sequence[str]) -> Verdict:
    if all(kind == "within noise" for kind in kinds):
        return "within noise"
    return all_hold([kind != "lower" for kind in kinds])


def _example_statement(name: str, found: dict[str, Any]) -> Statement:
    example = found["example"]
    like_theory = name == "decaying" and (found["noise"], found["steps"]) == (1, 20)
    met = [f"{example[key]:.3g}" == f"{stated:.3g}" for key, stated in THEORY.items()] if like_theory else []
    stated = f" (theory: {', '.join(f'{key} {value:g}' for key, value in THEORY.items())})" if like_theory else ""
    return Statement(
        claim=(
            f"With {_RATES[name]} and as much release noise as one step has, hidden_state proves less than "
            "merged_trajectory only claims."
        ),
        source="theory 9.1",
        verdict=all_hold([example["with noise"] < example["merged_trajectory"], *met]),
        measured=(
            f"{_WEIGHTS}: ε = {example['with noise']:.3g} with noise, {100 * example['more_noise']:.0f} % more than "
            f"the model has; {example['without noise']:.3g} without, {example['merged_trajectory']:.3g} claimed by "
            f"merged_trajectory, {example['joint_release']:.3g} by joint release{stated}."
        ),
    )


def _without_noise(numbers: dict[str, Any]) -> Statement:
    dearer, words = {}, []
    for name, found in numbers.items():
        ratios = values(found["same_weights"]["hidden_state"]) / values(found["same_weights"]["merged_trajectory"])
        dearer[name] = found["example"]["without noise"] / found["example"]["merged_trajectory"]
        used = values(found["methods"]["hidden_state"]["release_noise"]) > 0
        words.append(
            f"{name} rate: {dearer[name]:.2f} times the claim of merged_trajectory for {_WEIGHTS}, "
            f"{np.nanmin(ratios):.2f} to {np.nanmax(ratios):.2f} times for the weights planned; {used.sum()} of "
            f"{used.size} plans use release noise"
        )
    return Statement(
        claim="Without release noise the proof costs more when the rate decays to zero than when it is constant.",
        source="theory 9.1",
        verdict=all_hold([dearer["decaying"] > dearer["constant"]]),
        measured="; ".join(words) + ".",
        why="The last steps of a decaying rate are small, and so is their noise: it cannot hide the gap that the steps "
        "before have left; release noise can.",
    )


def _clipping(numbers: dict[str, Any]) -> Statement:
    found = [numbers[name]["gradients"] for name in numbers]
    largest, features = (max(each[key] for each in found) for key in ("largest", "largest_features"))
    clip_norm = min(each["clip_norm"] for each in found)
    return Statement(
        claim="Clipping never acts: no record's gradient is longer than √2 times its features, which is below C.",
        source="theory 9.5",
        verdict=all_hold([largest <= math.sqrt(2) * features, math.sqrt(2) * features <= clip_norm, features <= 1]),
        measured=(
            f"The largest gradient of a record at any trained model has norm {largest:.4f}, the largest features have "
            f"norm {features:.6f}; √2 = {math.sqrt(2):.6f} and C = {clip_norm:g}."
        ),
    )
