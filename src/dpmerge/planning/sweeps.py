"""ε over all probabilities or weights of two or three models: the sweeps a report shows.

Guarantees: each value is the same number `account` would give for that selection or combination; panels and lines say
by which theorem, and whether it is proved for these runs.
Refuses (NaN): what no theorem asked has a formula for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpmerge.errors import InvalidInput, NoGuarantee
from dpmerge.planning.analysis import Accounting, Edge, Face, Line, Panel
from dpmerge.planning.candidates import Theorem, covered
from dpmerge.planning.rungs import Rung, Rungs
from dpmerge.planning.weights import Weightings, lattice
from dpmerge.privacy.domain import Array
from dpmerge.privacy.renyi import DEFAULT_ORDERS, RenyiProfile
from dpmerge.privacy.selection import selection_epsilons, selection_renyi_epsilons

THEOREM_NAMES: tuple[Theorem, ...] = ("joint_release", "last_step", "hidden_state", "merged_trajectory")
ACCOUNTINGS: tuple[Accounting, ...] = ("rdp", "pld")


def face(rungs: Rungs, three: Sequence[Rung], *, theorem: Theorem = "auto", resolution: int = 100) -> Face:
    """Selection and combination, each by Rényi divergence and exactly, over the simplex of three models."""
    if len(three) != 3:
        raise InvalidInput("face", [rung.name for rung in three], "three checkpoints")
    rows = lattice(3, resolution)
    grid = np.rint(rows * resolution).astype(int)

    def spread(values: Array) -> Array:
        panel = np.full((resolution + 1, resolution + 1), np.nan)
        panel[grid[:, 1], grid[:, 0]] = values
        return panel

    panels = []
    for accounting in ACCOUNTINGS:
        drawn = _selected(rungs, three, rows, accounting)
        panels.append(Panel(f"random selection, {accounting.upper()}", "select", accounting, None, True, spread(drawn)))
    for accounting in ACCOUNTINGS:
        values, used, holds = _combined(rungs, three, rows, theorem, accounting)
        panels.append(
            Panel(f"linear combination, {accounting.upper()}", "combine", accounting, used, holds, spread(values))
        )
    return Face((three[0].name, three[1].name, three[2].name), resolution, tuple(panels))


def edge(rungs: Rungs, two: Sequence[Rung], *, theorem: Theorem = "auto", points: int = 101) -> Edge:
    """Selection and combination of two models, and what each theorem says of the combination."""
    if len(two) != 2:
        raise InvalidInput("edge", [rung.name for rung in two], "two checkpoints")
    shares = np.linspace(0, 1, points)
    rows = np.column_stack([1 - shares, shares])
    lines = []
    for accounting in ACCOUNTINGS:
        drawn = _selected(rungs, two, rows, accounting)
        lines.append(Line(f"random selection, {accounting.upper()}", "select", accounting, None, True, drawn))
    for accounting in ACCOUNTINGS:
        values, used, holds = _combined(rungs, two, rows, theorem, accounting)
        lines.append(Line(f"linear combination, {accounting.upper()}", "combine", accounting, used, holds, values))
    theorems = []
    for name in THEOREM_NAMES:
        values, _, holds = _combined(rungs, two, rows, name, "pld")
        if np.isfinite(values).any():
            theorems.append(Line(name, "combine", "pld", name, holds, values))
    return Edge((two[0].name, two[1].name), shares, tuple(lines), tuple(theorems))


def _selected(rungs: Rungs, members: Sequence[Rung], rows: Array, accounting: Accounting) -> Array:
    profiles = [rung.profile for rung in members]
    if accounting == "pld":
        return selection_epsilons(profiles, rows, rungs.delta)
    curves = np.array([RenyiProfile.of(profile).values for profile in profiles])
    return selection_renyi_epsilons(curves, rows, rungs.delta, DEFAULT_ORDERS, "improved")


def _combined(
    rungs: Rungs, members: Sequence[Rung], rows: Array, theorem: Theorem, accounting: Accounting
) -> tuple[Array, str, bool]:
    """ε of each row by a theorem, or by whichever proved one is tightest there; its name; whether it is proved."""
    names = [theorem] if theorem != "auto" else [name for name in THEOREM_NAMES if proved(rungs, members, name)]
    smallest = np.full(rows.shape[0], np.inf)
    best_of = np.zeros(rows.shape[0], dtype=int)
    checkpoints = tuple(rung.checkpoint for rung in members)
    for place, name in enumerate(names):
        try:
            values = Weightings(checkpoints, name, accounting).epsilons(rows, rungs.delta)
        except (NoGuarantee, InvalidInput):
            continue
        better = values < smallest * (1 - 1e-9)
        smallest, best_of = np.where(better, values, smallest), np.where(better, place, best_of)
    used = " or ".join(names[place] for place in np.unique(best_of)) if names else "no theorem"
    holds = bool(names) and (theorem == "auto" or proved(rungs, members, theorem))
    return np.where(np.isfinite(smallest), smallest, np.nan), used, holds


def proved(rungs: Rungs, members: Sequence[Rung], theorem: Theorem) -> bool:
    """Whether a theorem's premises hold for averages of these models."""
    try:
        return covered(rungs.portfolio, [rung.name for rung in members], theorem).certifies
    except (NoGuarantee, InvalidInput):
        return False
