"""Mean estimation: two Gaussian estimates of one mean, merged by random selection (RS) or linear combination (LC).

Guarantees: LC is proved here, for each estimate is one step; its ε and RS's bound are closed forms or certified solves.
Beside them stands the exact law of RS as one number with the index untold, which the paper's theorem is about.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpmerge.experiments import untold_index
from dpmerge.experiments.presets import DELTA
from dpmerge.experiments.statements import Statement, all_hold
from dpmerge.experiments.workshop import Workshop
from dpmerge.privacy import (
    DEFAULT_ORDERS,
    Adjacency,
    GaussianRelease,
    LinearCombination,
    RenyiProfile,
    gaussian_epsilon,
    joint_release,
    merged_trajectory,
    merged_trajectory_mus,
    selection_epsilons,
    selection_renyi_epsilons,
)
from dpmerge.privacy.domain import Array
from dpmerge.report.plots import COLOURS, Drawing, Plot, Series, values

TITLE = "Mean estimation: what selecting and averaging two private means cost and give"

RECORDS = 100
SENSITIVITY = 2 / RECORDS  # of the mean of numbers in [−1, 1] when one of them is replaced
DEVIATIONS = (0.04, 0.12)  # of the noise on the mean
CHECKED_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
STANDARD_ERRORS = 4.0

_CHUNK = 10_000
_ROUNDS = 50
_ROUNDING = 1e-9  # relative: two sides of an equality, solved to that


def settings(workshop: Workshop) -> dict[str, Any]:
    return {
        "records": RECORDS,
        "data": "standard normal, clipped to [-1, 1]; the population mean is 0",
        "adjacency": "replace_one",
        "sensitivity of the mean": SENSITIVITY,
        "deviation of the noise on the mean": list(DEVIATIONS),
        "noise multipliers": [deviation / SENSITIVITY for deviation in DEVIATIONS],
        "about the noise": "the paper does not state it: these two are ours",
        "delta": DELTA,
        "RDP": f"classic conversion, the paper's, best of {DEFAULT_ORDERS.size} orders from 1.1 to 1024",
        "PLD": "exact closed forms",
        "weights": "of the first, less noisy estimate: π for RS, λ for LC",
        "points of a sweep": workshop.preset.mean.points,
        "data sets drawn": workshop.preset.mean.draws,
        "theorem": {
            "equal variance": "for every π there is one λ in [0, 1], for π = 1 two; privacy depends on variance alone",
            "orders": list(untold_index.ORDERS),
            "π": list(untold_index.PROBABILITIES),
            "σ₂/σ₁": [DEVIATIONS[1] / DEVIATIONS[0], untold_index.EXAMPLE[0][1]],
            "Δ/σ₁ order by order": "0.001 to 10, the largest for which it holds bisected to 0.1 %",
            "Δ/σ₁ in (ε, δ)": "0.0001 to 10",
        },
    }


def measure(workshop: Workshop) -> dict[str, Any]:
    points = workshop.preset.mean.points
    best = DEVIATIONS[1] ** 2 / (DEVIATIONS[0] ** 2 + DEVIATIONS[1] ** 2)  # precision weights: least variance
    weights = np.union1d(np.linspace(0, 1, points), [best])
    chances = np.union1d(np.linspace(0, 1, points), np.geomspace(1e-7, 0.01, points // 4 + 1))
    return {
        "value_variance": value_variance(),
        "inputs": _swept(np.array([1.0, 0.0]), combined_epsilons, combined_variances),
        "selection": _swept(chances, selected_epsilons, selected_variances),
        "combination": _swept(weights, combined_epsilons, combined_variances)
        | {"proved": [_proved(float(weight)) for weight in weights], "joint": _joint()},
        "frontier": {accounting: _frontier(accounting, points, best) for accounting in ("rdp", "pld")},
        "untold": untold_index.measured(DEVIATIONS, SENSITIVITY, points, DELTA),
        "monte_carlo": _monte_carlo(workshop.preset.mean.draws, workshop.noise_seed("mean", "data and noise"), best),
    }


def value_variance() -> float:
    """Of a standard normal clipped to [−1, 1]: 1 − 2φ(1), for ∫x²φ over [−1, 1] is P(|x| < 1) − 2φ(1)."""
    return float(1 - 2 * np.exp(-0.5) / np.sqrt(2 * np.pi))


def selected_variances(chances: Array) -> Array:
    return np.asarray(chances * DEVIATIONS[0] ** 2 + (1 - chances) * DEVIATIONS[1] ** 2)


def combined_variances(weights: Array) -> Array:
    return np.asarray(weights**2 * DEVIATIONS[0] ** 2 + (1 - weights) ** 2 * DEVIATIONS[1] ** 2)


def errors(variances: Array) -> Array:
    """Mean squared error to the population mean: the data's own, and the noise's."""
    return np.asarray(value_variance() / RECORDS + variances)


def selected_epsilons(chances: Array, accounting: str) -> Array:
    """RS with the index published: Σ π_i δ_i(ε), and log Σ π_i e^{(α−1)ε_i}/(α−1)."""
    profiles = [estimate.profile() for estimate in _estimates()]
    rows = np.stack([chances, 1 - chances], axis=-1)
    if accounting == "pld":
        return selection_epsilons(profiles, rows, DELTA)
    curves = np.array([RenyiProfile.of(profile).values for profile in profiles])
    return selection_renyi_epsilons(curves, rows, DELTA, DEFAULT_ORDERS, "classic")


def combined_epsilons(weights: Array, accounting: str) -> Array:
    """LC by merged_trajectory, which is proved here: premise (a), one step."""
    mus = merged_trajectory_mus(_estimates(), np.stack([weights, 1 - weights], axis=-1))
    if accounting == "pld":
        return gaussian_epsilon(mus, DELTA)
    curves = np.multiply.outer(mus**2 / 2, DEFAULT_ORDERS)
    # Each a selection that always takes the same member: the classic conversion of many curves at once.
    return selection_renyi_epsilons(curves, np.eye(mus.size), DELTA, DEFAULT_ORDERS, "classic")


def _estimates() -> list[GaussianRelease]:
    return [
        GaussianRelease(sensitivity=SENSITIVITY, standard_deviation=noise, adjacency=Adjacency.REPLACE_ONE, label=name)
        for noise, name in zip(DEVIATIONS, ("first", "second"), strict=True)
    ]


def _proved(weight: float) -> bool:
    """Whether every premise of merged_trajectory holds for this combination."""
    return merged_trajectory(LinearCombination.of_runs(_estimates(), (weight, 1 - weight))).certifies


def _joint() -> float | None:
    """What releasing both estimates costs, by PLD."""
    return joint_release(LinearCombination.of_runs(_estimates(), (0.5, 0.5))).epsilon(DELTA)


def _swept(
    weights: Array, epsilons: Callable[[Array, str], Array], variances: Callable[[Array], Array]
) -> dict[str, Any]:
    found = {accounting: epsilons(weights, accounting) for accounting in ("rdp", "pld")}
    return {"weights": weights, **found, "error": errors(variances(weights))}


def _frontier(accounting: str, points: int, best: float) -> dict[str, Any]:
    """The least error of both methods within each of many ε, from the most private estimate's to LC's largest."""
    least, first, most = combined_epsilons(np.array([0.0, 1.0, best]), accounting)
    targets = np.union1d(np.linspace(least, most, points), [first])
    chances = _largest_within(lambda w: selected_epsilons(w, accounting), targets, 1e-100, 1.0)
    weights = _largest_within(lambda w: combined_epsilons(w, accounting), targets, 1e-20, best)
    served = targets <= first  # beyond, RS has nothing better than the first estimate
    return {
        "targets": targets,
        "chances": chances,
        "weights": weights,
        "select": np.where(served, errors(selected_variances(chances)), np.nan),
        "combine": errors(combined_variances(weights)),
        "select_missed": np.where(served, targets - selected_epsilons(chances, accounting), np.nan),
        "combine_missed": targets - combined_epsilons(weights, accounting),
    }


def _largest_within(epsilons: Callable[[Array], Array], targets: Array, least: float, top: float) -> Array:
    """The largest weight, 0 or in [least, top], whose ε, increasing there, is at most each target.

    Bisected in the logarithm: by RDP a π of 1e-20 already costs more than none.
    """
    low, high = np.full(targets.size, np.log(least / top)), np.zeros(targets.size)
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        fits = epsilons(top * np.exp(middle)) <= targets
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    found = np.where(low > np.log(least / top), top * np.exp(low), 0.0)
    return np.where(epsilons(np.full(targets.size, top)) <= targets, top, found)


def _monte_carlo(draws: int, seed: int, best: float) -> dict[str, Any]:
    """Squared errors over data sets drawn anew: of the mean itself, of RS and of LC, beside the formulas."""
    rng = np.random.default_rng(seed)
    weights, averaged = np.array(CHECKED_WEIGHTS), np.append(CHECKED_WEIGHTS, best)
    squares = np.empty((draws, 1 + weights.size + averaged.size))
    for start in range(0, draws, _CHUNK):
        part = squares[start : start + _CHUNK]
        mean = np.clip(rng.standard_normal((len(part), RECORDS)), -1, 1).mean(axis=1)
        first, second = mean + np.array(DEVIATIONS)[:, np.newaxis] * rng.standard_normal((2, len(part)))
        drawn = rng.random((len(part), 1)) < weights
        selected = np.where(drawn, first[:, np.newaxis], second[:, np.newaxis])
        combined = np.outer(first, averaged) + np.outer(second, 1 - averaged)
        part[:] = np.column_stack([mean, selected, combined]) ** 2
    variances = [np.zeros(1), selected_variances(weights), combined_variances(averaged)]
    return {
        "what": ["mean", *["selection"] * weights.size, *["combination"] * averaged.size],
        "weights": [np.nan, *weights, *averaged],
        "measured": squares.mean(axis=0),
        "standard_error": squares.std(axis=0, ddof=1) / np.sqrt(draws),
        "formula": errors(np.concatenate(variances)),
        "draws": draws,
    }


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    return [
        _tradeoff(numbers),
        *_sweep(numbers, "selection", "random selection", "π, the probability of the less noisy estimate"),
        *_sweep(numbers, "combination", "linear combination", "λ, the weight of the less noisy estimate"),
        *untold_index.drawings(numbers["untold"]),
    ]


_RS, _LC, _GREY = COLOURS["select"], COLOURS["combine"], COLOURS["models"]
_EPSILON = f"ε at δ = {DELTA:g}"
_SETTING = f"{RECORDS} clipped records, noise of deviation {DEVIATIONS[0]:g} and {DEVIATIONS[1]:g}, δ = {DELTA:g}"


def _line(name: str, x: object, y: object, colour: str, **how: Any) -> Series:
    return Series(name=name, x=values(x), y=values(y), colour=colour, **how)


def _tradeoff(numbers: dict[str, Any]) -> Plot:
    series = []
    for accounting, marks, mark in (("rdp", "dots", "squares"), ("pld", "none", "diamonds")):
        found, inputs = numbers["frontier"][accounting], numbers["inputs"]
        words = accounting.upper()
        series += [
            _line(f"random selection (RS), {words}", found["targets"], found["select"], _RS, marks=marks),
            _line(f"linear combination (LC), {words}", found["targets"], found["combine"], _LC, marks=marks),
            _line(f"the two estimates, {words}", inputs[accounting], inputs["error"], _GREY, marks=mark, line=False),
        ]
    return Plot(
        name="mean-tradeoff",
        heading="How accurate a mean can two private estimates give within each ε?",
        words="Of two noisy means of the same data, random selection (RS) publishes one drawn at random and linear "
        "combination (LC) a weighted average. Each line shows the least mean squared error within ε, by Rényi "
        "accounting (RDP, dots) and by the exact privacy profile (PLD). Lower and further left is better. RS ends at "
        "the less noisy estimate; LC goes on below it, because averaging cancels noise.",
        across=_EPSILON,
        up="mean squared error",
        series=tuple(series),
        note=_SETTING,
    )


def _sweep(numbers: dict[str, Any], part: str, name: str, across: str) -> list[Plot]:
    """The two panels of a figure of the appendix: ε, and the error with what was measured."""
    found, drawn = numbers[part], numbers["monte_carlo"]
    colour, weights = (_RS if part == "selection" else _LC), found["weights"]
    chosen = np.array([what == part for what in drawn["what"]])
    at, measured, error = (values(drawn[key])[chosen] for key in ("weights", "measured", "standard_error"))
    how: dict[str, Any] = {"marks": "squares", "line": False, "error": STANDARD_ERRORS * error}
    return [
        Plot(
            name=f"mean-{part}-epsilon",
            heading=f"What does {name} cost as its weight varies?",
            words="Weight 0 is the noisier estimate, weight 1 the less noisy one. Dots: Rényi accounting (RDP); "
            "plain line: the exact privacy profile (PLD).",
            across=across,
            up=_EPSILON,
            series=(
                _line(f"{name}, RDP", weights, found["rdp"], colour, marks="dots"),
                _line(f"{name}, PLD", weights, found["pld"], colour),
            ),
            note=_SETTING,
        ),
        Plot(
            name=f"mean-{part}-error",
            heading=f"How accurate is {name} as its weight varies?",
            words=f"The formula, and what {drawn['draws']:,} data sets drawn anew gave.",
            across=across,
            up="mean squared error",
            series=(
                _line(f"{name}, formula", weights, found["error"], colour),
                _line(f"{name}, measured ± {STANDARD_ERRORS:g} standard errors", at, measured, _GREY, **how),
            ),
            note=_SETTING,
        ),
    ]


def statements(numbers: dict[str, Any]) -> list[Statement]:
    return [
        _lc_proved(numbers["combination"]),
        _pld_below_rdp(numbers),
        _continuous(numbers["frontier"]),
        *(_no_worse(numbers["frontier"][accounting], accounting) for accounting in ("rdp", "pld")),
        _below_both_inputs(numbers),
        _formulas_confirmed(numbers["monte_carlo"]),
        *untold_index.statements(numbers["untold"]),
    ]


def _lc_proved(found: dict[str, Any]) -> Statement:
    proved = found["proved"]
    return Statement(
        claim="For two Gaussian estimates the paper's accounting of LC is a proof.",
        source="theory, section 4",
        verdict=all_hold(proved),
        measured=f"All premises of merged_trajectory hold for {sum(proved)} of {len(proved)} weights.",
        why="Each estimate is one step, so there is no hidden state for the records to act on.",
    )


def _pld_below_rdp(numbers: dict[str, Any]) -> Statement:
    parts = [(values(numbers[part]["pld"]), values(numbers[part]["rdp"])) for part in ("selection", "combination")]
    (rs, lc), below = [pld / rdp for pld, rdp in parts], np.concatenate([pld < rdp for pld, rdp in parts])
    return Statement(
        claim="PLD accounting gives tighter ε than RDP accounting.",
        source="paper, Figure 1",
        verdict=all_hold(below),
        measured=f"PLD is below RDP at {below.sum()} of {below.size} weights: {_span(rs, '.1%')} of it for RS, "
        f"{_span(lc, '.1%')} for LC (classic conversion).",
    )


def _continuous(frontier: dict[str, Any]) -> Statement:
    names = ("select_missed", "combine_missed")
    missed = [values(found[name]) / values(found["targets"]) for found in frontier.values() for name in names]
    largest = float(np.nanmax(np.concatenate(missed)))
    asked = sum(int(np.isfinite(found).sum()) for found in missed)
    steep = [
        f"π = {found['chances'][1]:.0e} at ε = {found['targets'][1]:.3f} by {accounting.upper()}, where π = 0 has "
        f"{found['targets'][0]:.3f}"
        for accounting, found in frontier.items()
    ]
    return Statement(
        claim="Both methods trace a continuous trade-off between error and ε.",
        source="paper, Figure 1",
        verdict="agrees" if largest < 1e-6 else "disagrees",
        measured=f"Asked for {asked} values of ε, weights were found that miss them by at most {largest:.0e} of ε.",
        why=f"Continuous, but RS begins steeply: {'; '.join(steep)}.",
    )


def _no_worse(found: dict[str, Any], accounting: str) -> Statement:
    ratio = values(found["combine"]) / values(found["select"])
    ratio, targets = ratio[np.isfinite(ratio)], values(found["targets"])[np.isfinite(ratio)]
    least = int(np.argmin(ratio))
    kind = "RDP" if accounting == "rdp" else "(ε, δ), by PLD and with the index of RS known"
    return Statement(
        claim=f"LC has no larger mean squared error than RS at equal ε in {kind}.",
        source="paper, Figure 1",
        verdict=all_hold(ratio <= 1 + _ROUNDING),
        measured=f"LC's error is {_span(ratio, '.1%')} of RS's at {ratio.size} values of ε up to the less noisy "
        f"estimate's; the largest gain is at ε = {targets[least]:.3f}.",
        why="RS is charged here as if the index were known, which is what is certified; see below for the exact law.",
    )


def _below_both_inputs(numbers: dict[str, Any]) -> Statement:
    found, inputs = numbers["combination"], values(numbers["inputs"]["error"])
    best, selected = int(np.argmin(values(found["error"]))), min(numbers["selection"]["error"])
    error, epsilon, first = found["error"][best], found["pld"][best], numbers["inputs"]["pld"][0]
    return Statement(
        claim="LC reaches an error below both estimates', which RS cannot.",
        source="theory, section 5",
        verdict="agrees" if error < inputs.min() <= selected * (1 + _ROUNDING) else "disagrees",
        measured=f"At λ = {found['weights'][best]:.3f} the error is {error:.5f}; the estimates' are {inputs[0]:.5f} "
        f"and {inputs[1]:.5f}, RS's at least {selected:.5f}. By PLD ε is {epsilon:.3f}, the less noisy estimate's "
        f"{first:.3f}, both together {found['joint']:.3f}.",
        why="Averaging cancels independent noise: with weights proportional to 1/σ² the variance is below the smaller "
        "one. It is paid for: at these weights LC costs what releasing both does.",
    )


def _formulas_confirmed(found: dict[str, Any]) -> Statement:
    off = np.abs(values(found["measured"]) - values(found["formula"])) / values(found["standard_error"])
    return Statement(
        claim="RS has error v/n + πσ₁² + (1 − π)σ₂² and LC v/n + λ²σ₁² + (1 − λ)²σ₂².",
        source="paper, section 4.1",
        verdict=all_hold(off <= STANDARD_ERRORS),
        measured=f"Over {found['draws']:,} data sets drawn anew, {off.size} measured errors are within {off.max():.1f} "
        f"standard errors of the formulas ({STANDARD_ERRORS:g} allowed), v = 1 − 2φ(1) = {value_variance():.4f}.",
    )


def _span(found: Array, form: str) -> str:
    return f"{found.min():{form}} to {found.max():{form}}"
