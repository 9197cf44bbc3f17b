"""What checkpoints of one run show: a figure for each reading of the paper's steps, and what became of its claims.

Guarantees: figures and statements are functions of the numbers of `checkpoints.measure` alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.report.plots import COLOURS, Drawing, Panels, Plot, Series, values
from reproduction.pareto_findings import MEASURED, Measured, monotone
from reproduction.statements import Statement, Verdict, all_hold, difference, margins, told_at_size

SELECT_RDP, SELECT_PLD, COMBINED = "select-rdp", "select-pld", "combine"


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    """One figure for each reading of the paper's steps."""
    figures: dict[str, dict[str, Any]] = {}
    for name, found in numbers["tasks"].items():
        figures.setdefault(_unit(found), {})[name] = found
    return [_figure(unit, of, numbers["delta"]) for unit, of in figures.items()]


def _unit(found: dict[str, Any]) -> str:
    """What the paper's steps were read as."""
    return "epochs" if "epochs" in found else "steps"


def _figure(unit: str, tasks: dict[str, Any], delta: float) -> Panels:
    plots = tuple(
        _plot(name, found, delta, measured) for name, found in tasks.items() for measured in MEASURED
    )  # fmt: skip
    kept = "; ".join(
        f"{_called(name)}: {unit} {', '.join(f'{count:g}' for count in found[unit])}" for name, found in tasks.items()
    )
    repetitions = {len(found["accuracies"]) for found in tasks.values()}
    words = (
        f"For each privacy level ε (δ = {delta:g}, records added or removed) the accuracy of the best mixture of one "
        f"run's checkpoints ({kept}) that costs no more, mean of {' and '.join(map(str, sorted(repetitions)))} "
        "repetitions with 95 % confidence. Held out: chosen on one half of the public images, measured on the other. "
        "In sample: chosen and measured on the same images, as in the paper. Random selection publishes one checkpoint "
        "drawn at random, RDP (dotted) read through the paper's conversion; an average costs what its latest "
        "checkpoint does. To choose by accuracy is not paid for here."
    )
    return Panels(name=f"checkpoints-{unit}", heading=f"{plots[0].heading} Kept by {unit}", words=words, plots=plots)


def _called(name: str) -> str:
    return {"mnist": "MNIST", "cifar10": "CIFAR-10"}.get(name.removesuffix("-steps"), name)


def _plot(name: str, found: dict[str, Any], delta: float, measured: Measured) -> Plot:
    targets, accuracies = values(found["targets"]), values(found["accuracies"]).mean(axis=2)

    def curve(key: str, label: str, colour: str) -> Series:
        utilities = values(found["curves"][key][measured])
        return Series(
            name=label,
            x=targets,
            y=utilities.mean(axis=0),
            error=None if key == SELECT_RDP else _band(utilities),
            colour=colour,
            dotted=key == SELECT_RDP,
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
    words, caption = MEASURED[measured]
    return Plot(
        name=f"checkpoints-{name}-{measured}",
        caption=f"{_called(name)}, {caption}",
        heading="What do the earlier checkpoints of a run add to its last one?",
        words=words,
        across=f"ε at δ = {delta:g} (one record added or removed)",
        up="accuracy on public images",
        series=series,
        log_x=True,
        note=found["described"],
    )


def _band(repetitions: Array) -> Array | None:
    return margins(repetitions) if len(repetitions) > 1 else None


def statements(numbers: dict[str, Any]) -> list[Statement]:
    found: list[Statement] = []
    for name, of in numbers["tasks"].items():
        unit = _unit(of)
        source = f"paper, Figure 5 ({name})"
        curves = {"by PLD": SELECT_PLD, "by RDP": SELECT_RDP}
        frontier = monotone({label: values(of["curves"][key]["held_out"]) for label, key in curves.items()}, source)
        claim = "Random selection works for correlated checkpoints of one run: its frontier rises with ε."
        listed = "; ".join(
            f"{unit[:-1]} {count:g} ε {pld:.3f} (RDP {rdp:.3f}; {replaced:.3f} replaced)"
            for count, pld, rdp, replaced in zip(
                of[unit], *(of["epsilons"][key] for key in ("pld", "rdp", "replaced")), strict=True
            )
        )
        measured = f"By PLD, a record added or removed (or replaced): {listed}. {frontier.measured}"
        of_this = [
            replace(frontier, claim=claim, measured=measured),
            _pld_below_rdp(of, source),
            _costs_the_latest(of, name),
            _averages(of, name),
        ]
        found += told_at_size(of_this, papers=of["papers_size"], repetitions=len(of["accuracies"]))
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
