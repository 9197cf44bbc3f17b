"""What the ladder shows: figures and statements, from its numbers alone.

Guarantees: accuracies are compared with those stated in the theory only where the setting is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpmerge.report.plots import COLOURS, Drawing, Panels, Plot, Series, lettered, values
from dpmerge.report.styles import OTHERS
from reproduction.presets import DELTA
from reproduction.statements import Difference, Statement, Verdict, all_hold, difference, margins, told_at_size

THEORY = {1: (0.051, 0.785), 2: (0.074, 0.821), 4: (0.108, 0.841), 8: (0.158, 0.856), 12: (0.197, 0.863)}
"""k → ε and accuracy of theory 4.7, for σ = 512, 20 steps and 60,000 records of MNIST."""

_LINES = {
    "averages": ("average of k equal runs", COLOURS["combine"], "squares"),
    "retrained": ("trained once with the noise σ/√k", OTHERS[0], "diamonds"),
    "selected rungs": ("the best random selection of the other averages", COLOURS["select"], "dots"),
    "selected models": ("the best random selection of the other trained models", COLOURS["select"], "squares"),
    "prefixes": ("the run trained for the top ε, stopped early", OTHERS[1], "diamonds"),
}


_DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    plots = tuple(_drawing(name, found) for name, found in numbers.items())
    own = " ".join(f"{lettered(place)} {plot.words}" for place, plot in enumerate(plots))
    words = (
        "Runs with the same settings; the average of the first k of them costs the joint release of k runs, whatever "
        "the model. Beside it, at the same ε: one run with less noise, the best random choice among the models for "
        "the other ε's, and the run for the largest ε stopped early. Bars: 95 % confidence over repetitions with other "
        f"noise. {own}"
    )
    return [Panels(name="ladder-averages", heading=plots[0].heading, words=words, plots=plots)]


def _drawing(name: str, found: dict[str, Any]) -> Plot:
    ks = found["averaged"]
    series = []
    for key, (title, colour, marks) in _LINES.items():
        accuracies = values(found["accuracies"][key])
        epsilons = values(found["prefix_epsilons" if key == "prefixes" else "epsilons"])
        error = margins(accuracies) if len(accuracies) > 1 else None
        series.append(
            Series(name=title, x=epsilons, y=accuracies.mean(axis=0), colour=colour, error=error, marks=marks)  # type: ignore[arg-type]
        )
    repetitions = len(values(found["accuracies"]["averages"]))
    return Plot(
        name=f"ladder-{name}",
        caption=_DATA.get(name, name),
        heading="Does averaging k equal runs do as well as training once for the same ε?",
        words=(
            f"{ks[-1]} runs, σ = {found['noise_multiplier']:g}, {found['steps']} steps, k = {', '.join(map(str, ks))}; "
            f"{repetitions} repetitions."
        ),
        across=f"ε at δ = {DELTA:g} (one record replaced)",
        up="accuracy on public test images",
        series=tuple(series),
        log_x=True,
        note=found["described"],
    )


def statements(numbers: dict[str, Any]) -> list[Statement]:
    return [
        statement
        for name, found in numbers.items()
        for statement in told_at_size(
            list(_statements(name, found)),
            papers=found["papers_size"],
            repetitions=len(found["accuracies"]["averages"]),
        )
    ]


def _statements(name: str, found: dict[str, Any]) -> Iterator[Statement]:
    data = _DATA.get(name, name)
    if name == "mnist" and (found["noise_multiplier"], found["steps"]) == (512, 20):
        yield theory_statement(found)
    yield _root_growth(data, found)
    if np.isfinite(values(found["deviations"]["averages"])).all():
        yield _falling_noise(data, found)
    yield _nothing_unproved(data, found)
    yield Statement(
        claim=f"{data}: asked for the ε of a rung, the planner releases that rung, without looking at any model.",
        source="ours",
        verdict=all_hold(found["planned_average"]),
        measured=(
            f"For ε = {', '.join(f'{epsilon:.3g}' for epsilon in found['epsilons'])} it releases the average of "
            f"{', '.join(map(str, found['planned']))} runs."
        ),
    )
    yield from _comparisons(data, found)


def theory_statement(found: dict[str, Any]) -> Statement:
    """The figures of the theory: ε to the digits given, accuracies where the data are the same."""
    ks, epsilons = found["averaged"], found["epsilons"]
    accuracies, single = values(found["accuracies"]["averages"]).mean(axis=0), values(found["single_runs"])
    known = [place for place, k in enumerate(ks) if k in THEORY]
    met = [f"{epsilons[place]:.3f}" == f"{THEORY[ks[place]][0]:.3f}" for place in known]
    words = f"k = {', '.join(str(ks[p]) for p in known)}: ε {', '.join(f'{epsilons[p]:.3f}' for p in known)}"
    stated = ", ".join(f"{THEORY[ks[p]][0]:.3f}" for p in known)
    if found["records"] == 60_000:
        met += [bool(abs(accuracies[place] - THEORY[ks[place]][1]) <= 0.01) for place in known]
        words += f" and accuracy {', '.join(f'{accuracies[p]:.3f}' for p in known)}"
        stated += f" and accuracy {', '.join(f'{THEORY[ks[p]][1]:.3f}' for p in known)} (within 0.01)"
    return Statement(
        claim=f"MNIST: averages of equal runs with σ = 512 have ε {stated}.",
        source="theory 4.7",
        verdict=all_hold(met),
        measured=f"{words}.",
        why=(
            f"Here single runs have {single.mean():.3f} with a standard deviation of {single.std():.3f}, from "
            f"{single.min():.3f} to {single.max():.3f}; the theory does not say how often its figures were repeated."
        ),
    )


def _root_growth(data: str, found: dict[str, Any]) -> Statement:
    ks, mus, once = (values(found[name]) for name in ("averaged", "mus", "retrained_mus"))
    off = float(np.max(np.abs(mus / (np.sqrt(ks) * mus[0]) - 1)))
    apart = float(np.max(np.abs(once / mus - 1)))
    return Statement(
        claim=f"{data}: μ grows as √k, and one run with the noise σ/√k has exactly the μ of k averaged runs.",
        source="theory 4.7",
        verdict=all_hold([off < 1e-8, apart < 1e-8]),
        measured=(
            f"μ from {mus[0]:.4g} to {mus[-1]:.4g} for k = 1 to {ks[-1]:g}; off √k by {off:.1g} at most, off the "
            f"retrained runs by {apart:.1g} at most (relative)."
        ),
    )


def _falling_noise(data: str, found: dict[str, Any]) -> Statement:
    ks, averaged, once = (
        values(v) for v in (found["averaged"], found["deviations"]["averages"], found["deviations"]["retrained"])
    )
    power = float(np.polyfit(np.log(ks), np.log(averaged), 1)[0])
    ratios = averaged / once
    return Statement(
        claim=f"{data}: the noise of a weight falls as 1/√k.",
        source="theory 4.7",
        verdict=all_hold([abs(power + 0.5) <= 0.05]),
        measured=(
            f"Over repetitions a weight deviates by {averaged[0]:.3g} for k = 1 and {averaged[-1]:.3g} for k = "
            f"{ks[-1]:g}: as k to the power {power:.3f}. That is {ratios.min():.3f} to {ratios.max():.3f} times the "
            "deviation of a run trained once for the same ε."
        ),
    )


def _nothing_unproved(data: str, found: dict[str, Any]) -> Statement:
    ratios = values(found["assumed_mus"]) / values(found["mus"])
    lost = float(np.max(np.abs(ratios - 1)))
    also = "also" if all(found["assumed_proved"]) else "not"
    return Statement(
        claim=f"{data}: joint release proves every rung, and merged_trajectory would claim no less for it.",
        source="theory 4.7",
        verdict=all_hold([*found["proved"], lost < 1e-8]),
        measured=(
            f"{sum(found['proved'])} of {len(ratios)} rungs are proved by joint release; merged_trajectory, {also} "
            f"proved for these runs, gives the same μ to {lost:.1g}."
        ),
        why="With precision weights the two formulas are equal (Cauchy–Schwarz): nothing is lost by proving only one.",
    )


def _comparisons(data: str, found: dict[str, Any]) -> Iterator[Statement]:
    ks = found["averaged"]
    between = range(1, len(ks) - 1)
    yield Statement(
        claim=f"{data}: the average of k equal runs is as accurate as one run trained for its ε.",
        source="ours",
        **_compared(found, "retrained", range(1, len(ks)), equal=True),
        why=_bias(found),
    )
    for other, what in (("rungs", "the other averages"), ("models", "models trained for the other ε's")):
        if between:
            dearer = [sum(values(found["chances"][other])[place][place + 1 :]) for place in between]
            chances = ", ".join(f"{chance:.2g}" for chance in dearer)
            yield Statement(
                claim=f"{data}: the average of k runs is more accurate than the best draw among {what} at its ε.",
                source="ours",
                **_compared(found, f"selected {other}", between),
                why=(
                    f"Within the ε of these rungs anything dearer may be drawn with probability {chances} only: "
                    "what is averaged by a draw is δ, and δ falls steeply with ε."
                ),
            )
    steps = found["prefix_steps"][:-1]
    rates = [found["rates"][step - 1] for step in steps]
    yield Statement(
        claim=f"{data}: the average of k runs is more accurate than the run trained for the top ε, stopped at its ε.",
        source="ours",
        **_compared(found, "prefixes", range(len(ks) - 1)),
        why=(
            f"Against the run trained for its own ε a prefix has: {_prefixes(found)}. "
            f"Stopped after {', '.join(map(str, steps))} of {found['steps']} steps, at learning rates of "
            f"{', '.join(f'{rate:.2g}' for rate in rates)}."
        ),
    )


def _prefixes(found: dict[str, Any]) -> str:
    gained = values(found["accuracies"]["prefixes"]) - values(found["accuracies"]["retrained"])
    places = range(1, len(found["averaged"]) - 1)
    return "; ".join(f"k = {found['averaged'][place]}: {difference(gained[:, place])}" for place in places) or "nothing"


def _bias(found: dict[str, Any]) -> str:
    """What is left of the difference when noise is averaged away as far as it can be, equally on both sides."""
    averaged, once = (values(found["overall"][name])[1:] for name in ("averages", "retrained"))
    means = " and ".join(", ".join(f"{accuracy:.3f}" for accuracy in line) for line in (averaged, once))
    told = f"Averaged over all repetitions the two have {means} (k = {', '.join(map(str, found['averaged'][1:]))})"
    if np.all(averaged < once):
        return f"{told}: noise also changes what each run learns, and averaging afterwards does not undo that."
    return f"{told}."


def _compared(found: dict[str, Any], other: str, places: Sequence[int], *, equal: bool = False) -> dict[str, Any]:
    """Verdict and figures of averages minus something else, rung by rung."""
    gained = values(found["accuracies"]["averages"]) - values(found["accuracies"][other])
    differences = {found["averaged"][place]: difference(gained[:, place]) for place in places}
    words = "; ".join(f"k = {k}: {each}" for k, each in differences.items())
    return {"verdict": _verdict(list(differences.values()), equal=equal), "measured": f"{words}."}


def _verdict(differences: Sequence[Difference], *, equal: bool) -> Verdict:
    kinds = [each.kind for each in differences]
    if all(kind == "within noise" for kind in kinds):
        return "within noise"
    return all_hold([kind != "lower" if equal else kind == "higher" for kind in kinds])
