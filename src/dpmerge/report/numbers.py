"""The figures as numbers: one CSV file a figure or table, and everything as JSON.

Guarantees: full precision, infinity as "inf", an empty cell where there is no number; JSON that every parser reads; no
text that a spreadsheet would run as a formula (one that might be gets a leading ').
Refuses: folders that do not exist.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dpmerge.planning.analysis import Analysis, Curve, Edge, Face, Line, Panel
from dpmerge.report.whole_files import existing_folder, write_whole

Cell = str | float | bool | None

FORMULA_STARTS = "=+-@\t\r\n＝＋－＠'"
"""The apostrophe too, so that taking one away always gives the text back."""

_ORIGIN = ("method", "accounting", "theorem", "proved")


def write_numbers(analysis: Analysis, folder: Path) -> list[Path]:
    """Write them all, and say which."""
    existing_folder(folder)
    written = [
        write_whole(folder / f"{name}.csv", _csv(analysis.banner, head, rows)) for name, head, rows in _tables(analysis)
    ]
    document = json.dumps(analysis.document(), indent=2, allow_nan=False, ensure_ascii=False)
    written.append(write_whole(folder / "analysis.json", f"{document}\n".encode()))
    return written


def _tables(analysis: Analysis) -> Iterator[tuple[str, Sequence[str], Iterable[Sequence[Cell]]]]:
    """Name, head and rows of each file."""
    yield "models", ("model", "epsilon", "utility"), [(m.name, m.epsilon, m.utility) for m in analysis.models]
    yield "frontier", ("curve", *_ORIGIN, "epsilon", "utility"), _frontier(analysis)
    for number, face in enumerate(analysis.faces):
        shares = [f"share of {name}" for name in face.names]
        yield f"face-{number}", ("panel", *_ORIGIN, *shares, "epsilon"), _face(face)
    for number, edge in enumerate(analysis.edges):
        share = f"share of {edge.names[1]}"
        yield f"edge-{number}", ("line", *_ORIGIN, share, "epsilon"), _lines(edge, edge.lines)
        yield f"theorems-{number}", ("line", *_ORIGIN, share, "epsilon"), _lines(edge, edge.theorems)
    head = ("target", "epsilon", "utility", "theorem", "final", "outcome", "probability", "released", "recipe")
    yield "recommendations", head, _recommendations(analysis)


def _frontier(analysis: Analysis) -> Iterator[Sequence[Cell]]:
    for curve in analysis.curves:
        for epsilon, utility in zip(curve.epsilons, curve.utilities, strict=True):
            yield *_origin(curve), float(epsilon), float(utility)


def _face(face: Face) -> Iterator[Sequence[Cell]]:
    for panel in face.panels:
        steps = len(panel.epsilons) - 1
        for i in range(steps + 1):
            for j in range(steps + 1 - i):
                shares = (j / steps, i / steps, (steps - i - j) / steps)
                yield *_origin(panel), *shares, float(panel.epsilons[i, j])


def _lines(edge: Edge, lines: Iterable[Line]) -> Iterator[Sequence[Cell]]:
    for line in lines:
        for weight, epsilon in zip(edge.weights, line.epsilons, strict=True):
            yield *_origin(line), float(weight), float(epsilon)


def _recommendations(analysis: Analysis) -> Iterator[Sequence[Cell]]:
    for plan in analysis.recommendations:
        for number, (probability, recipe) in enumerate(plan.outcomes, start=1):
            exact = json.dumps(plan.recipes[number - 1])
            yield plan.target, plan.epsilon, plan.utility, plan.theorem, plan.final, number, probability, recipe, exact


def _origin(line: Curve | Panel | Line) -> tuple[Cell, ...]:
    return line.name, line.method, line.accounting, line.theorem, line.proved


def _csv(banner: str, head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    stream = io.StringIO()
    stream.write(f"# {banner}\n")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([_cell(name) for name in head])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return stream.getvalue().encode()


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return f"'{value}" if value.lstrip(" ")[:1] in tuple(FORMULA_STARTS) else value
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None or math.isnan(value) else repr(value)
