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
from dpmerge.report.plots import COLOURS, Plot, Series, values
from dpmerge.report.styles import THEOREMS
from dpmerge.terms.recipe import Recipe
from reproduction.frontiers import held_out, in_sample
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.statements import Statement, Verdict, all_hold, difference, margins
from reproduction.training import Setup, Task

SELECT_RDP, SELECT_PLD = "select-rdp", "select-pld"
ASSUMED_RDP, ASSUMED_PLD = "combine-rdp", "combine-pld"
PROVED, PLANNED = "combine-proved", "planned"

_CALLED = {
    SELECT_PLD: "random selection",
    ASSUMED_PLD: "linear combination (assumed)",
    PROVED: "linear combination (joint release)",
    PLANNED: "planned without looking",
}

_BEYOND = 1.03
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
    seconds, portfolios = [], []
    for repeat in range(repeats):
        before = store.timings.get(f"training {name}", 0.0)
        portfolios.append(store.portfolio(task, name, setups, repeat=repeat))
        seconds.append(store.timings[f"training {name}"] - before)
    models = last_rungs(portfolios[0])
    costs = mixture_epsilons(models, rows)
    ends = [end for cost in costs.values() for end in (cost.min(), cost.max())]
    grid = np.geomspace(min(ends) / _BEYOND, max(ends) * _BEYOND, targets)
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
        "seconds": seconds,
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
    """The best merge of two or more models and the best model: chosen on one half, measured on the other, both ways."""
    merges = np.flatnonzero(rows.max(axis=1) < 1)
    best: dict[str, Any] = {"merge": [], "model": [], "weights": []}
    for halves, models in zip(combined, singles, strict=True):
        chosen = merges[halves[:, merges].argmax(axis=1)]
        alone = models.argmax(axis=1)
        best["merge"].append(float(np.mean([halves[1, chosen[0]], halves[0, chosen[1]]])))
        best["model"].append(float(np.mean([models[1, alone[0]], models[0, alone[1]]])))
        best["weights"].append(rows[chosen])
    return best


def pareto_drawing(numbers: dict[str, Any], *, name: str, heading: str, note: str) -> Plot:
    """The frontiers, each with the noise of the repetitions as a band, and the models they are made of."""
    targets = values(numbers["targets"])

    def curve(key: str, label: str, colour: str, *, dashed: bool = False) -> Series:
        utilities = values(numbers["curves"][key]["held_out"])
        rdp, banded = key in (SELECT_RDP, ASSUMED_RDP), key in (SELECT_PLD, ASSUMED_PLD, PLANNED)
        return Series(
            name=label,
            x=targets,
            y=utilities.mean(axis=0),
            error=_band(utilities) if banded else None,  # more bands than these hide one another
            colour=colour,
            dashed=dashed,
            marks="dots" if rdp else "none",
            steps=key == PROVED,
        )

    accuracies = values(numbers["accuracies"]).mean(axis=2)
    series = (
        curve(SELECT_RDP, "random selection, RDP", COLOURS["select"]),
        curve(SELECT_PLD, "random selection, PLD", COLOURS["select"]),
        curve(ASSUMED_RDP, "linear combination, RDP (assumed)", COLOURS["combine"], dashed=True),
        curve(ASSUMED_PLD, "linear combination, PLD (assumed)", COLOURS["combine"], dashed=True),
        curve(PROVED, "linear combination, joint release (its choice not paid for)", THEOREMS[1]),
        curve(PLANNED, "planned without looking, proved", COLOURS["mix"]),
        Series(
            name="the models themselves, PLD",
            x=values(numbers["model_epsilons"]["pld"]),
            y=accuracies.mean(axis=0),
            error=_band(accuracies),
            colour=COLOURS["models"],
            marks="diamonds",
            line=False,
        ),
    )
    words = (
        f"For each privacy level ε (δ = {numbers['delta']:g}) the accuracy of the best mixture of "
        f"{len(numbers['names'])} models that costs no more: chosen on one half of the public images, measured on the "
        f"other, mean of {len(accuracies)} repetitions with other noise. Bands (of the PLD and the planned curves) are "
        "95 % confidence intervals. RDP, with dots, is read through the paper's conversion to (ε, δ). Dashed is the "
        "paper's accounting of linear combination, assumed, not proved here; joint release of the models with positive "
        "weight is proved for weights fixed beforehand. To choose by accuracy, as all curves but the planned one do, "
        "is not paid for. The planned curve is proved, and chosen by the records alone."
    )
    return Plot(
        name=name,
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
        _merge_beats_models(numbers, source),
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
    both = np.isfinite(selected + combined).all(axis=0) & (targets <= largest * _BEYOND)
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


def _merge_beats_models(numbers: dict[str, Any], source: str) -> Statement:
    best = numbers["best"]
    found = difference(values(best["merge"]) - values(best["model"]))
    weights = values(best["weights"]).mean(axis=(0, 1))
    mixture = ", ".join(f"{weight:.2f} {name}" for name, weight in zip(numbers["names"], weights, strict=True))
    verdicts: dict[str, Verdict] = {"higher": "agrees", "lower": "disagrees", "within noise": "within noise"}
    return Statement(
        claim="A merged model may be more accurate than every model it is made of.",
        source=source,
        verdict=verdicts[found.kind],
        measured=(
            f"The best merge is at {np.mean(best['merge']):.4f}, the best model at {np.mean(best['model']):.4f}: "
            f"{found}, both chosen on one half of the images and measured on the other. The weights chosen are on "
            f"average {mixture}."
        ),
    )
