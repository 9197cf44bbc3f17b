"""ε over all probabilities or weights of two or three models: the sweeps a report shows.

Guarantees: each value is the same number `account` would give for that selection or combination; panels and lines say
by which theorem, and whether it is proved for these runs.
Refuses (NaN): what no theorem asked has a formula for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpmerge.accounting.random_selection import selection_epsilons, selection_renyi_epsilons
from dpmerge.accounting.renyi import DEFAULT_ORDERS, Conversion, RenyiProfile
from dpmerge.accounting.validation import Array
from dpmerge.errors import InvalidInputError, NoGuaranteeError
from dpmerge.planning.analysis import Accounting, Edge, Face, Line, Panel
from dpmerge.planning.candidates import THEOREM_NAMES, AskedTheorem, covered
from dpmerge.planning.feasible_weights import Weightings, lattice
from dpmerge.planning.usable_checkpoints import UsableCheckpoint, UsableCheckpoints

ACCOUNTINGS: tuple[Accounting, ...] = ("rdp", "pld")

NEAR, NEAR_POINTS = 1e-12, 30
"""The smallest share of a model beside none, and how many there are from it to the first of equal distance."""


def face(
    usable: UsableCheckpoints,
    three: Sequence[UsableCheckpoint],
    *,
    theorem: AskedTheorem = "auto",
    resolution: int = 100,
    conversion: Conversion = "improved",
) -> Face:
    """Selection and combination, each by Rényi divergence and exactly, over the simplex of three models.

    Args:
        usable: The checkpoints of a portfolio, at a δ.
        three: The models.
        theorem: By which combinations are accounted for; `auto`: the tightest that is proved.
        resolution: Into how many parts each edge is divided.
        conversion: How a Rényi divergence becomes an ε.

    Returns:
        One panel of ε for each method and accounting.

    Raises:
        InvalidInputError: Not three models.
    """
    if len(three) != 3:
        raise InvalidInputError("face", [checkpoint.name for checkpoint in three], "three checkpoints")
    rows = lattice(3, resolution)
    grid = np.rint(rows * resolution).astype(int)

    def spread(values: Array) -> Array:
        panel = np.full((resolution + 1, resolution + 1), np.nan)
        panel[grid[:, 1], grid[:, 0]] = values
        return panel

    panels = []
    for accounting in ACCOUNTINGS:
        drawn = selected_epsilons(usable, three, rows, accounting, conversion)
        panels.append(Panel(f"random selection, {accounting.upper()}", "select", accounting, None, True, spread(drawn)))
    for accounting in ACCOUNTINGS:
        values, used, holds = combined_epsilons(usable, three, rows, theorem, accounting, conversion)
        panels.append(
            Panel(f"linear combination, {accounting.upper()}", "combine", accounting, used, holds, spread(values))
        )
    return Face((three[0].name, three[1].name, three[2].name), resolution, tuple(panels))


def edge(
    usable: UsableCheckpoints,
    two: Sequence[UsableCheckpoint],
    *,
    theorem: AskedTheorem = "auto",
    points: int = 101,
    conversion: Conversion = "improved",
) -> Edge:
    """Selection and combination of two models, and what each theorem says of the combination.

    Args:
        usable: The checkpoints of a portfolio, at a δ.
        two: The models.
        theorem: By which combinations are accounted for; `auto`: the tightest that is proved.
        points: How many weights at equal distances; there are more near both ends, where ε is steep or jumps.
        conversion: How a Rényi divergence becomes an ε.

    Returns:
        One line of ε for each method and accounting, and for each theorem.

    Raises:
        InvalidInputError: Not two models.
    """
    if len(two) != 2:
        raise InvalidInputError("edge", [checkpoint.name for checkpoint in two], "two checkpoints")
    near = np.geomspace(NEAR, 1 / points, NEAR_POINTS, endpoint=False)  # where a model all but drops out
    shares = np.unique(np.concatenate([np.linspace(0, 1, points), near, 1 - near]))
    rows = np.column_stack([1 - shares, shares])
    lines = []
    for accounting in ACCOUNTINGS:
        drawn = selected_epsilons(usable, two, rows, accounting, conversion)
        lines.append(Line(f"random selection, {accounting.upper()}", "select", accounting, None, True, drawn))
    for accounting in ACCOUNTINGS:
        values, used, holds = combined_epsilons(usable, two, rows, theorem, accounting, conversion)
        lines.append(Line(f"linear combination, {accounting.upper()}", "combine", accounting, used, holds, values))
    theorems = []
    for name in THEOREM_NAMES:
        values, _, holds = combined_epsilons(usable, two, rows, name, "pld")
        if np.isfinite(values).any():
            theorems.append(Line(name, "combine", "pld", name, holds, values))
    return Edge((two[0].name, two[1].name), shares, tuple(lines), tuple(theorems))


def selected_epsilons(
    usable: UsableCheckpoints,
    members: Sequence[UsableCheckpoint],
    rows: Array,
    accounting: Accounting,
    conversion: Conversion = "improved",
) -> Array:
    """ε of drawing one of these models, for each row of probabilities."""
    profiles = [checkpoint.profile for checkpoint in members]
    if accounting == "pld":
        return selection_epsilons(profiles, rows, usable.delta)
    curves = np.array([RenyiProfile.of(profile).values for profile in profiles])
    return selection_renyi_epsilons(curves, rows, usable.delta, DEFAULT_ORDERS, conversion)


def combined_epsilons(
    usable: UsableCheckpoints,
    members: Sequence[UsableCheckpoint],
    rows: Array,
    theorem: AskedTheorem,
    accounting: Accounting,
    conversion: Conversion = "improved",
) -> tuple[Array, str, bool]:
    """ε of each row by a theorem, or by whichever proved one is tightest there; its name; whether it is proved."""
    names = [theorem] if theorem != "auto" else [name for name in THEOREM_NAMES if proved(usable, members, name)]
    smallest = np.full(rows.shape[0], np.inf)
    best_of = np.zeros(rows.shape[0], dtype=int)
    checkpoints = tuple(checkpoint.prefix for checkpoint in members)
    for index, name in enumerate(names):
        try:
            values = Weightings(checkpoints, name, accounting, conversion).epsilons(rows, usable.delta)
        except (NoGuaranteeError, InvalidInputError):
            continue
        better = values < smallest * (1 - 1e-9)
        smallest, best_of = np.where(better, values, smallest), np.where(better, index, best_of)
    used = " or ".join(names[index] for index in np.unique(best_of)) if names else "no theorem"
    holds = bool(names) and (theorem == "auto" or proved(usable, members, theorem))
    return np.where(np.isfinite(smallest), smallest, np.nan), used, holds


def proved(usable: UsableCheckpoints, members: Sequence[UsableCheckpoint], theorem: AskedTheorem) -> bool:
    """Whether a theorem's premises hold for averages of these models, many of which it can price at once."""
    try:
        bound = covered(usable.portfolio, [checkpoint.name for checkpoint in members], theorem)
        # Of sampled runs last_step is composed one average at a time, which no sweep has the time for.
        return bound.certifies and (theorem != "last_step" or bound.mu is not None)
    except (NoGuaranteeError, InvalidInputError):
        return False
