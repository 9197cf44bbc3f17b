"""Joint release of N equal Gaussian mechanisms: by RDP and PLD, and by the textbook bounds that know (ε, δ) alone.

Guarantees: every method promises its ε at the same total δ; RDP is minimised over orders so fine that it is the
paper's closed form to five digits; PLD is exact, for N Gaussians of μ are one of μ√N.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from dpmerge.accounting import (
    GaussianProfile,
    RenyiProfile,
    advanced_composition,
    basic_composition,
    compose,
    optimal_composition,
)
from dpmerge.accounting.validation import Array
from dpmerge.report.plots import Drawing, Plot, Series, values
from dpmerge.report.styles import THEOREMS
from reproduction.presets import DELTA
from reproduction.run_store import RunStore
from reproduction.statements import Statement, all_hold

TITLE = "Joint release: accounting by RDP and PLD against the composition of (ε, δ) pairs"

ORDERS: Array = 1 + np.geomspace(1e-3, 9e4, 2401)
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
DELTAS = (1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.49)
SLACKS = (1e-10, 1e-8, 1e-6, 1e-5, 1e-4, 1e-2, 0.1, 0.5, 0.9)
COMPARED_DELTAS = (1e-8, 1e-6, 1e-4)
COMPARED_SLACKS = (1e-8, 1e-5, 1e-3)
SHOWN_MU = 0.1
METHODS = ("pld", "improved", "classic", "optimal", "basic", "advanced")

_TOLERANCE = 1 + 1e-9  # a solver's, where two methods coincide


def settings(store: RunStore) -> dict[str, Any]:
    return {
        "mechanisms": "N equal Gaussian mechanisms of ratio μ = sensitivity / deviation of the noise",
        "each": "(ε, δ)-DP by RDP with the classic conversion, the paper's",
        "total δ": "Nδ + δ₀ for every method; basic composition has each mechanism at a share 1/N of it",
        "advanced": "ε√(2N log(1/δ₀)) + Nε(e^ε − 1)",
        "optimal": "Kairouz, Oh and Viswanath's, from the same (ε, δ) pairs as advanced",
        "RDP": f"classic and improved conversion, best of {ORDERS.size} orders from 1.001 to {ORDERS[-1]:g}",
        "PLD": "exact: N Gaussians of μ are one of μ√N",
        "grid of the proposition": {
            "μ": mus(store.preset.mean.points).tolist(),
            "N": list(counts(store.preset.mean.points)),
            "δ": list(DELTAS),
            "δ₀": list(SLACKS),
            "left out": "cases with Nδ + δ₀ ≥ 1",
        },
        "grid of all methods": {"μ": "the same", "δ": list(COMPARED_DELTAS), "δ₀": list(COMPARED_SLACKS)},
        "figures": f"μ = {SHOWN_MU:g}, total δ = {DELTA:g}, δ = δ₀ = {DELTA:g}/(N + 1)",
    }


def mus(points: int) -> Array:
    """From nearly nothing to hardly private."""
    return np.geomspace(0.005, 3.0, max(4, points // 10))


def counts(points: int) -> tuple[int, ...]:
    """All of COUNTS, or every third for a trial."""
    return COUNTS if points > 50 else COUNTS[::3]


def measure(store: RunStore) -> dict[str, Any]:
    points = store.preset.mean.points
    return {
        "mu": SHOWN_MU,
        "total": DELTA,
        "shown": _shown(counts(points)),
        "proposition": _proposition(mus(points), counts(points)),
        "order": _order(mus(points), counts(points)),
    }


class Release:
    """The joint release of `count` mechanisms of μ, through every method."""

    def __init__(self, mu: float, count: int) -> None:
        self.count = count
        self.joint = compose([GaussianProfile(mu)] * count)
        self.curve = RenyiProfile.of(self.joint, ORDERS)
        self.classic = self.curve.converted("classic")
        self.one = RenyiProfile.of(GaussianProfile(mu), ORDERS).converted("classic")

    def advanced(self, delta: float, slack: float) -> float:
        return advanced_composition(self.one.epsilon(delta), delta, self.count, slack)[0]

    def epsilons(self, delta: float, slack: float) -> dict[str, float]:
        """Of every method at Nδ + δ₀, and `same`: basic composition of the very pairs that the others are given."""
        total = self.count * delta + slack
        pairs = [(self.one.epsilon(delta), delta)] * self.count
        share = total / self.count
        return {
            "pld": self.joint.epsilon(total),
            "improved": self.curve.epsilon(total),
            "classic": self.classic.epsilon(total),
            "optimal": optimal_composition(pairs, total),
            "basic": basic_composition([(self.one.epsilon(share), share)] * self.count)[0],
            "advanced": self.advanced(delta, slack),
            "same": basic_composition(pairs)[0],
        }


def _shown(chosen: tuple[int, ...]) -> dict[str, Any]:
    """ε against N at one μ and one total δ."""
    found = [Release(SHOWN_MU, count).epsilons(DELTA / (count + 1), DELTA / (count + 1)) for count in chosen]
    return {"counts": chosen, **{name: [row[name] for row in found] for name in METHODS}}


def _proposition(ratios: Array, chosen: tuple[int, ...]) -> dict[str, Any]:
    """ε by RDP against advanced composition over the whole grid."""
    cases, skipped = [], 0
    for mu, count in product(ratios.tolist(), chosen):
        release = Release(mu, count)
        for delta, slack in product(DELTAS, SLACKS):
            total = count * delta + slack
            if total >= 1:
                skipped += 1
                continue
            cases.append((mu, count, delta, slack, release.classic.epsilon(total), release.advanced(delta, slack)))
    names = ("mus", "counts", "deltas", "slacks", "rdp", "advanced")
    return {**dict(zip(names, zip(*cases, strict=True), strict=True)), "skipped": skipped}


def _order(ratios: Array, chosen: tuple[int, ...]) -> dict[str, Any]:
    """All methods over a grid with fewer δ's: optimal composition takes longer."""
    columns: dict[str, list[float]] = {name: [] for name in ("mus", "counts", "deltas", "slacks", *METHODS, "same")}
    for mu, count in product(ratios.tolist(), chosen):
        release = Release(mu, count)
        for delta, slack in product(COMPARED_DELTAS, COMPARED_SLACKS):
            row = {"mus": mu, "counts": count, "deltas": delta, "slacks": slack, **release.epsilons(delta, slack)}
            for name, value in row.items():
                columns[name].append(value)
    return columns


_LOOKS = {
    "advanced": ("advanced composition", THEOREMS[5]),
    "basic": ("basic composition", THEOREMS[6]),
    "optimal": ("optimal composition of (ε, δ) pairs", THEOREMS[3]),
    "classic": ("RDP, classic conversion (the paper's)", THEOREMS[1]),
    "improved": ("RDP, improved conversion", THEOREMS[2]),
    "pld": ("PLD, exact", THEOREMS[4]),
}


def drawings(numbers: dict[str, Any]) -> list[Drawing]:
    shown = numbers["shown"]
    exact, across = values(shown["pld"]), "N, mechanisms released together"
    note = f"each Gaussian with sensitivity / deviation = {numbers['mu']:g}; total δ = {numbers['total']:g}"
    return [
        Plot(
            name="composition-epsilon",
            heading="What do N releases cost together, by each way of accounting?",
            words="N equal Gaussian mechanisms on the same data. Basic, advanced and optimal composition know of each "
            "mechanism no more than one pair (ε, δ); RDP and PLD know its whole privacy profile. All at the same total "
            "δ; lower is better.",
            across=across,
            up=f"ε at δ = {numbers['total']:g}",
            series=tuple(_series(name, shown, values(shown[name])) for name in _LOOKS),
            log_x=True,
            log_y=True,
            note=note,
        ),
        Plot(
            name="composition-ratio",
            heading="How many times the exact cost does each way of accounting charge?",
            words="The same ε's divided by the exact one (PLD). One is exact.",
            across=across,
            up="ε / exact ε",
            series=tuple(_series(name, shown, values(shown[name]) / exact) for name in _LOOKS),
            log_x=True,
            log_y=True,
            note=note,
        ),
    ]


def _series(method: str, shown: dict[str, Any], y: Array) -> Series:
    name, colour = _LOOKS[method]
    dots = method in ("classic", "improved")
    return Series(name=name, x=values(shown["counts"]), y=y, colour=colour, marks="dots" if dots else "none")


def statements(numbers: dict[str, Any]) -> list[Statement]:
    order = {name: values(column) for name, column in numbers["order"].items()}
    return [
        _proposition_holds(numbers["proposition"]),
        _exact_below_rdp(order),
        _optimal_in_between(order),
        _advanced_against_basic(order),
        _gain(numbers),
    ]


def _proposition_holds(found: dict[str, Any]) -> Statement:
    rdp, advanced = values(found["rdp"]), values(found["advanced"])
    holds, least, slack = rdp <= advanced, int(np.argmin(advanced / rdp)), int(np.argmin(advanced - rdp))
    names = {"mus": "μ", "counts": "N", "deltas": "δ", "slacks": "δ₀"}
    where = [", ".join(f"{sign} = {found[name][k]:.3g}" for name, sign in names.items()) for k in (least, slack)]
    return Statement(
        claim="For N equal Gaussian mechanisms joint release by RDP costs no more than advanced composition.",
        source="paper, Proposition B.1",
        verdict=all_hold(holds),
        measured=f"Holds in {int(holds.sum())} of {holds.size} cases of μ, N, δ and δ₀. Advanced composition charges "
        f"at least {(advanced / rdp)[least]:.3g} times as much ({where[0]}); the smallest difference is "
        f"{(advanced - rdp)[slack]:.2g} ({where[1]}).",
    )


def _exact_below_rdp(order: dict[str, Array]) -> Statement:
    below = (order["pld"] <= order["improved"]) & (order["improved"] <= order["classic"] * _TOLERANCE)
    return Statement(
        claim="PLD costs no more than RDP, and RDP by the improved conversion no more than by the paper's.",
        source="theory 2.3",
        verdict=all_hold(below),
        measured=f"Holds in {int(below.sum())} of {below.size} cases: PLD is {_span(order['pld'] / order['classic'])} "
        f"of RDP by the classic conversion, {_span(order['pld'] / order['improved'])} of it by the improved one.",
    )


def _optimal_in_between(order: dict[str, Array]) -> Statement:
    optimal = order["optimal"]
    above = order["pld"] <= optimal * _TOLERANCE
    same = optimal <= np.minimum(order["same"], order["advanced"]) * _TOLERANCE
    shared = optimal <= order["basic"] * _TOLERANCE
    worst = float(np.max(optimal / order["basic"]))
    return Statement(
        claim="Optimal composition of the (ε, δ) pairs costs no less than PLD, and no more than basic and advanced "
        "composition of the same pairs.",
        source="theory 1",
        verdict=all_hold(above & same),
        measured=f"Not below PLD in {int(above.sum())} of {above.size} cases, not above the other two in "
        f"{int(same.sum())}. Against basic composition with each mechanism at 1/N of the total δ it is not above in "
        f"{int(shared.sum())}, and elsewhere up to {worst:.2f} times.",
        why="Optimal is meant for the pairs given. Basic composition with a larger δ for each mechanism has other "
        "pairs, whose ε is smaller: that can be worth more than the best composition."
        if not shared.all()
        else "",
    )


def _advanced_against_basic(order: dict[str, Array]) -> Statement:
    same, shared = order["advanced"] > order["same"], order["advanced"] > order["basic"]
    one = order["counts"] == 1
    return Statement(
        claim="Advanced composition is often worse than basic composition.",
        source="theory 1",
        verdict="agrees" if same.mean() > 0.25 else "disagrees",
        measured=f"It is worse in {int(same.sum())} of {same.size} cases with the same pairs, {int(same[one].sum())} "
        f"of {int(one.sum())} with N = 1 among them, and in {int(shared.sum())} with basic composition at the same "
        "total δ.",
        why="Its ε√(2N log(1/δ₀)) exceeds Nε until N exceeds 2 log(1/δ₀), and Nε(e^ε − 1) is large for ε above one.",
    )


def _gain(numbers: dict[str, Any]) -> Statement:
    last = {name: column[-1] for name, column in numbers["shown"].items()}
    times = {name: last[name] / last["pld"] for name in METHODS}
    return Statement(
        claim="Joint release by RDP or PLD is tighter than what is known from (ε, δ) pairs alone.",
        source="paper, appendix B",
        verdict=all_hold([last["classic"] < last[name] for name in ("optimal", "advanced", "basic")]),
        measured=f"{last['counts']:g} mechanisms of μ = {numbers['mu']:g}, total δ = {numbers['total']:g}: ε = "
        f"{last['pld']:.3f} by PLD. RDP charges {times['classic']:.2f} times that ({times['improved']:.2f} by the "
        f"improved conversion), optimal composition {times['optimal']:.1f}, basic {times['basic']:.1f} and advanced "
        f"{times['advanced']:.1f} times.",
    )


def _span(ratio: Array) -> str:
    return f"{ratio.min():.0%} to {ratio.max():.0%}"
