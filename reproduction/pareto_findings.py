"""What frontiers of accuracy against ε show: one figure, held out and in sample, and what became of the claims.

Guarantees: figures and statements are functions of the numbers of `pareto.pareto` alone; a curve that is not proved is
dashed and called assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.report.plots import COLOURS, Panels, Plot, Series, lettered, values
from reproduction.pareto import ASSUMED_PLD, ASSUMED_RDP, BEYOND, PLANNED, PROVED, SELECT_PLD, SELECT_RDP
from reproduction.statements import Statement, Verdict, all_hold, difference, margins

_CALLED = {
    SELECT_PLD: "random selection",
    ASSUMED_PLD: "linear combination (assumed)",
    PROVED: "linear combination (joint release)",
    PLANNED: "planned without looking",
}

Measured = Literal["held_out", "in_sample"]
"""On which images the accuracy of a choice is that of a curve."""

MEASURED: dict[Measured, tuple[str, str]] = {
    "held_out": ("chosen on one half of the images, measured on the other", "held out"),
    "in_sample": ("chosen and measured on the same images, as in the paper", "in sample"),
}


def pareto_drawing(numbers: dict[str, Any], *, name: str, heading: str, note: str) -> Panels:
    """The frontiers, each with the noise of the repetitions as bars, and the models they are made of.

    Two panels: as a choice turns out on other images, and as the paper draws it, on the images it was made by.
    """
    plots = tuple(_frontiers(numbers, measured, name=name, heading=heading, note=note) for measured in MEASURED)
    repetitions = len(numbers["accuracies"])
    often = f"mean of {repetitions} repetitions with other noise" if repetitions > 1 else "one repetition"
    bars = " Bars (of the PLD and the planned curves) are 95 % confidence intervals." if repetitions > 1 else ""
    words = (
        f"For each privacy level ε (δ = {numbers['delta']:g}) the accuracy of the best mixture of "
        f"{len(numbers['names'])} models that costs no more, {often}: "
        f"{'; '.join(f'{lettered(place)} {MEASURED[measured][0]}' for place, measured in enumerate(MEASURED))}. "
        f"The best of many is flattered by luck in (b), not in (a).{bars} RDP, dotted, is read through the paper's "
        "conversion to (ε, δ). Dashed is the paper's accounting of linear combination, assumed, not proved here; joint "
        "release of the models with positive weight is proved for weights fixed beforehand. To choose by accuracy, as "
        "all curves but the planned one do, is not paid for. The planned curve is proved, and chosen by the records "
        "alone."
    )
    return Panels(name=name, heading=heading, words=words, plots=plots)


def _frontiers(numbers: dict[str, Any], measured: Measured, *, name: str, heading: str, note: str) -> Plot:
    targets = values(numbers["targets"])

    def curve(key: str, label: str, colour: str, *, dashed: bool = False) -> Series:
        utilities = values(numbers["curves"][key][measured])
        rdp, barred = key in (SELECT_RDP, ASSUMED_RDP), key in (SELECT_PLD, ASSUMED_PLD, PLANNED)
        return Series(
            name=label,
            x=targets,
            y=utilities.mean(axis=0),
            error=_band(utilities) if barred else None,  # more bars than these hide one another
            colour=colour,
            dashed=dashed,
            dotted=rdp,
            steps=key == PROVED,
        )

    accuracies = values(numbers["accuracies"]).mean(axis=2)
    series = (
        curve(SELECT_RDP, "random selection, RDP", COLOURS["select"]),
        curve(SELECT_PLD, "random selection, PLD", COLOURS["select"]),
        curve(ASSUMED_RDP, "linear combination, RDP (assumed)", COLOURS["combine"], dashed=True),
        curve(ASSUMED_PLD, "linear combination, PLD (assumed)", COLOURS["combine"], dashed=True),
        curve(PROVED, "linear combination, joint release (its choice not paid for)", COLOURS["joint_release"]),
        curve(PLANNED, "planned without looking, proved", COLOURS["mix"]),
        Series(
            name="the models themselves, PLD",
            x=values(numbers["model_epsilons"]["pld"]),
            y=accuracies.mean(axis=0),
            error=_band(accuracies),
            colour=COLOURS["models"],
            marks="diamonds",
            line=False,
            points=tuple(numbers["names"]),
        ),
    )
    words, caption = MEASURED[measured]
    return Plot(
        name=f"{name}-{measured}",
        caption=caption,
        heading=heading,
        words=words,
        across=f"ε at δ = {numbers['delta']:g} (one record replaced)",
        up="accuracy on public images",
        series=series,
        log_x=True,
        note=note,
    )


def _band(repetitions: Array) -> Array | None:
    return margins(repetitions) if len(repetitions) > 1 else None


def pareto_statements(numbers: dict[str, Any], *, source: str) -> list[Statement]:
    """What became of the paper's claims about its frontiers, and of ours."""
    return [
        _pld_below_rdp(numbers, source),
        _combination_beats_selection(numbers, source, proved=False),
        _combination_beats_selection(numbers, source, proved=True),
        monotone({name: values(numbers["curves"][key]["held_out"]) for key, name in _CALLED.items()}, source),
        _merge_beats_models(numbers, source, "in_sample"),
        _merge_beats_models(numbers, source, "held_out"),
    ]


def _pld_below_rdp(numbers: dict[str, Any], source: str) -> Statement:
    pairs = {"random selection": (SELECT_RDP, SELECT_PLD), "linear combination": (ASSUMED_RDP, ASSUMED_PLD)}
    costs = {key: values(found) for key, found in numbers["epsilons"].items()}
    ratios = {method: costs[rdp] / costs[pld] for method, (rdp, pld) in pairs.items()}
    below = np.concatenate([ratio > 1 for ratio in ratios.values()])
    factors = " and ".join(f"{ratio.min():.2f} to {ratio.max():.2f} times in {of}" for of, ratio in ratios.items())
    return Statement(
        claim="ε by PLD is smaller than by RDP everywhere.",
        source=source,
        verdict=all_hold(below),
        measured=f"At {below.sum():,} of {below.size:,} mixtures; RDP costs {factors}.",
    )


def _combination_beats_selection(numbers: dict[str, Any], source: str, *, proved: bool) -> Statement:
    key = PROVED if proved else ASSUMED_PLD
    targets = values(numbers["targets"])
    selected, combined = (values(numbers["curves"][k]["held_out"]) for k in (SELECT_PLD, key))
    largest = max(np.max(values(numbers["epsilons"][k])) for k in (SELECT_PLD, key))
    both = np.isfinite(selected + combined).all(axis=0) & (targets <= largest * BEYOND)
    gains = (combined - selected)[:, both]
    kinds = [difference(column).kind for column in gains.T]
    higher, lower = kinds.count("higher"), kinds.count("lower")
    overall, means = difference(gains.mean(axis=1)), gains.mean(axis=0)
    by = "accounted for by joint release" if proved else "by the paper's accounting (assumed, not proved here)"
    # One test decides: of many targets some would differ by chance.
    verdicts: dict[str, Verdict] = {"higher": "agrees", "lower": "disagrees", "within noise": "within noise"}
    why = (
        "By what is proved an average costs the joint release of its models, more than the least private one alone."
        if proved
        else "What the paper's accounting assumes does not hold for these runs: this is no comparison of guarantees."
    )
    return Statement(
        claim=f"Linear combination, {by}, generally has a better trade-off than random selection.",
        source="ours" if proved else source,
        verdict=verdicts[overall.kind],
        measured=(
            f"Accuracy is higher at {higher} of {len(kinds)} targets, lower at {lower} and within noise at "
            f"{len(kinds) - higher - lower}; the differences go from {100 * means.min():+.2f} to "
            f"{100 * means.max():+.2f} points and are {overall} on average over the targets (PLD)."
        ),
        why=why,
    )


def monotone(curves: Mapping[str, Array], source: str) -> Statement:
    """Whether accuracy rises with ε; `curves` are [repetitions, targets] by what they are called."""
    reached = {name: utilities[:, np.isfinite(utilities).all(axis=0)] for name, utilities in curves.items()}
    changes = [change for of in reached.values() for change in np.diff(of, axis=1).T if change.any()]
    # One drop among many steps is enough to say that a frontier drops: it must not be chance.
    found = [difference(change, tests=len(changes)) for change in changes]
    drops = [change for change in found if change.kind == "lower"]
    rises = {name: difference(of[:, -1] - of[:, 0]) for name, of in reached.items()}
    kinds = [rise.kind for rise in rises.values()]
    verdict: Verdict = all_hold([kind == "higher" for kind in kinds])
    if verdict == "agrees" and drops:
        verdict = "agrees in part"
    if verdict == "disagrees" and not drops and "lower" not in kinds:
        verdict = "within noise"
    deepest = f", the deepest by {-100 * min(d.mean for d in drops):.2f} points" if drops else ""
    ends = "; ".join(f"{name} {rise}" for name, rise in rises.items())
    return Statement(
        claim="The frontier is monotone: a larger ε buys accuracy.",
        source=source,
        verdict=verdict,
        measured=(
            f"From the smallest target to the largest accuracy changes by: {ends}. Of {len(changes)} steps between "
            f"targets {len(drops)} are drops larger than noise{deepest}."
        ),
        why=(
            "Chosen on one half of the images and measured on the other, a frontier may drop; chosen and measured on "
            "the same images, as in the paper, it cannot."
        ),
    )


def _merge_beats_models(numbers: dict[str, Any], source: str, measured: Measured) -> Statement:
    best = numbers["best"] if measured == "held_out" else numbers["best"]["in_sample"]
    merge, model = values(best["merge"]), values(best["model"])
    found = difference(merge - model)
    weights = values(numbers["best"]["weights"]).mean(axis=(0, 1))
    mixture = ", ".join(f"{weight:.2f} {name}" for name, weight in zip(numbers["names"], weights, strict=True))
    verdicts: dict[str, Verdict] = {"higher": "agrees", "lower": "disagrees", "within noise": "within noise"}
    more = {
        "in_sample": "The best of many merges is compared with the best of a few models on the images that chose them: "
        "luck alone can make it higher.",
        "held_out": f"The weights chosen are on average {mixture}.",
    }
    return Statement(
        claim=f"A merged model may be more accurate than every model it is made of; {MEASURED[measured][0]}.",
        source=source if measured == "in_sample" else f"{source}, held out",
        verdict=verdicts[found.kind],
        measured=(
            f"The best merge is at {merge.mean():.4f}, the best model at {model.mean():.4f}: {found}; the merge is "
            f"ahead in {np.count_nonzero(merge > model)} of {len(merge)} repetitions."
        ),
        why=more[measured],
    )
