"""Heatmaps in rows, each with a scale of colours of its own; what has one colour everywhere becomes words.

Guarantees: a scale is that of the inside of its triangles, where all three models have a share: on a side, where one
drops out, ε often jumps, and would take all the colours; no panel spans less than half of its scale.
Refuses to draw a panel with one and the same ε all over its inside: its few values are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from dpmerge.accounting.validation import Array
from dpmerge.planning.analysis import Face, Panel
from dpmerge.report import wording
from dpmerge.report.axes import Axis

LOWEST = 0.02
"""The share of points below the scale: they have its first colour."""

SPANNED = 0.5
"""Of a shared scale, what each panel has to span; else each has its own."""

FLAT = 2e-3
"""Below this ratio of the largest to the smallest ε, less one, colours would show rounding."""


@dataclass(frozen=True)
class HeatmapRow:
    """Panels side by side on one scale; without an axis there are no colours, and words instead."""

    panels: tuple[Panel, ...]
    axis: Axis | None


def heatmap_rows(face: Face) -> list[HeatmapRow]:
    """The panels of a face in their order: those of a method together where one scale shows them all.

    Args:
        face: Three models and the panels over their simplex.

    Returns:
        Rows; every panel is in one of them.

    >>> epsilons = np.array([[1.0, 2, 3], [2, 3, np.nan], [3, np.nan, np.nan]])
    >>> panel = Panel("random selection, PLD", "select", "pld", None, True, epsilons)
    >>> [row.axis for row in heatmap_rows(Face(("a", "b", "c"), 2, (panel,)))]
    [Axis(low=1.1, high=3.0, log=False)]
    """
    rows: list[HeatmapRow] = []
    for _, members in groupby(face.panels, key=lambda panel: panel.method):
        panels = tuple(members)
        shared = _axis(panels)
        if any(_is_flat(panel) or _span(panel) < SPANNED * (shared.high - shared.low) for panel in panels):
            rows += [HeatmapRow((panel,), None if _is_flat(panel) else _axis((panel,))) for panel in panels]
        else:
            rows.append(HeatmapRow(panels, shared))
    return rows


def inside(panel: Panel) -> Array:
    """The finite ε where all three models have a share; of a coarse panel, all of them."""
    size = len(panel.epsilons)
    rows, columns = np.nonzero(np.add.outer(np.arange(size), np.arange(size)) < size)
    within = (rows > 0) & (columns > 0) & (rows + columns < size - 1) if size > 4 else np.ones(rows.size, dtype=bool)
    values = np.asarray(panel.epsilons[rows[within], columns[within]], dtype=float)
    return np.asarray(values[np.isfinite(values)])


def listed(panel: Panel, names: tuple[str, str, str]) -> list[tuple[str, str]]:
    """Of a panel without colours: what each model costs alone, each two together, and all three.

    Args:
        panel: One of a row without an axis.
        names: Of the first, second and third model.

    Returns:
        Who has a share, and ε in words.
    """
    costs, last = panel.epsilons, len(panel.epsilons) - 1
    first, second, third = names
    middle = max(last // 2, 1)
    found = [(first, costs[0, last]), (second, costs[last, 0]), (third, costs[0, 0])]
    if last > 1:
        found += [
            (f"{first} and {second}", costs[middle, last - middle]),
            (f"{first} and {third}", costs[0, middle]),
            (f"{second} and {third}", costs[middle, 0]),
        ]
    values = inside(panel)
    return [
        *((f"only {name}", wording.epsilon(float(cost))) for name, cost in found),
        ("all three, in any shares", wording.epsilon(float(values.max()) if values.size else np.nan)),
    ]


def _axis(panels: tuple[Panel, ...]) -> Axis:
    values = np.concatenate([np.zeros(0), *map(inside, panels)])
    ends = np.array([np.quantile(values, LOWEST), values.max()]) if values.size else values
    return Axis.of([ends], padding=0.0)


def _span(panel: Panel) -> float:
    values = inside(panel)
    return float(values.max() - np.quantile(values, LOWEST)) if values.size else 0.0


def _is_flat(panel: Panel) -> bool:
    values = inside(panel)
    return not values.size or bool(values.max() <= values.min() * (1 + FLAT))
