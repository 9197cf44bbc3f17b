"""The figures as pictures, PNG and SVG, for papers and slides; each says that it is not for release.

Guarantees: the same analysis gives the same bytes with the same matplotlib; no global state of pyplot is touched.
Refuses: to be made without matplotlib; folders that do not exist.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmerge.errors import InvalidInput
from dpmerge.planning.analysis import BANNER, Analysis, Edge, Face, Line, Panel
from dpmerge.privacy.domain import Array
from dpmerge.report import captions, styles, wording
from dpmerge.report.axes import Axis, edge_axis, face_axis, frontier_axes
from dpmerge.report.files import existing_folder, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160
LEGEND_WIDTH = 44
"""Characters of a name in a legend, on one line."""

MOST_NAMES = 12
"""Models named beside their marks; more would cover the lines."""

_SETTINGS: dict[str, Any] = {
    "svg.hashsalt": "dpmerge",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": styles.GRID,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "text.usetex": False,
}


def write_pictures(analysis: Analysis, folder: Path) -> list[Path]:
    """Write every figure twice, and say where."""
    written = []
    with settings():
        existing_folder(folder)
        for name, draw in _drawings(analysis):
            figure = draw()
            figure.text(0.5, 0.994, BANNER, ha="center", va="top", fontsize=8, color=styles.TARGET)
            written += [write_figure(figure, folder / f"{name}.{kind}") for kind in ("png", "svg")]
    return written


@contextmanager
def settings() -> Iterator[None]:
    """Within it figures are made and written; afterwards matplotlib is as it was."""
    with _matplotlib().rc_context(_SETTINGS), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def write_figure(figure: Figure, file: Path) -> Path:
    """As what the file's name ends in, without a date: the same figure gives the same bytes."""
    kind = file.suffix.removeprefix(".")
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else {})
    return write_whole(file, stream.getvalue())


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise InvalidInput(
            "report", "matplotlib", 'matplotlib installed: pip install "dpmerge[report]"', found="no matplotlib"
        ) from None
    return matplotlib


def _drawings(analysis: Analysis) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The name of each figure, and what draws it."""
    yield "frontier", partial(_frontier, analysis)
    for number, face in enumerate(analysis.faces):
        if face.panels:
            yield f"face-{number}", partial(_face, face)
    for number, edge in enumerate(analysis.edges):
        for name, lines, caption in (
            (f"edge-{number}", edge.lines, captions.edge_caption(edge)),
            (f"theorems-{number}", edge.theorems, captions.theorems_caption(edge)),
        ):
            if lines:
                yield name, partial(_edge, analysis, edge, lines, caption.heading)


def _frontier(analysis: Analysis) -> Figure:
    across, up = frontier_axes(analysis)
    looks = styles.styles(analysis.curves, analysis)
    figure, axes = _one_plot(captions.frontier_caption(analysis).heading)
    for curve, look in zip(analysis.curves, looks, strict=True):
        _draw_line(axes, look, curve.epsilons, curve.utilities, drawstyle="steps-post")
    utility = wording.short(analysis.utility.name)
    set_axis(axes, "x", across, f"ε at δ = {analysis.delta:g} (smaller is more private)")
    set_axis(axes, "y", up, f"{utility} ({wording.direction(analysis.utility)})")
    models = [m for m in analysis.models if math.isfinite(m.epsilon) and math.isfinite(m.utility)]
    mark: dict[str, Any] = {
        "marker": "D",
        "linestyle": "none",
        "color": styles.MODELS,
        "markeredgecolor": "white",
        "markersize": 7,
    }
    axes.plot([m.epsilon for m in models], [m.utility for m in models], zorder=5, **mark)
    if len(models) <= MOST_NAMES:
        for model in models:
            # Left of the middle the name stands at the right of its mark, else at the left: never outside.
            right = across.place(model.epsilon) < 0.5
            axes.annotate(
                wording.short(model.name),
                (model.epsilon, model.utility),
                (8 if right else -8, 6 if up.place(model.utility) < 0.1 else -12),
                textcoords="offset points",
                ha="left" if right else "right",
                fontsize=8,
                color=styles.MODELS,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
                zorder=6,
            )
    names = [wording.label(curve) for curve in analysis.curves]
    _legend(figure, looks, names, extra=[(mark, "a model as it was trained")])
    return figure


def _edge(analysis: Analysis, edge: Edge, lines: Sequence[Line], heading: str) -> Figure:
    figure, axes = _one_plot(heading)
    looks = styles.styles(lines, analysis)
    for line, look in zip(lines, looks, strict=True):
        _draw_line(axes, look, edge.weights, line.epsilons)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel(f"share of {wording.short(edge.names[1])} (the rest is {wording.short(edge.names[0])})")
    set_axis(axes, "y", edge_axis(edge, lines), f"ε at δ = {analysis.delta:g}")
    _legend(figure, looks, [wording.label(line) for line in lines])
    return figure


def _face(face: Face) -> Figure:
    figure = face_figure(face)
    heading = wrapped(captions.face_caption(face).heading, 38 * min(2, len(face.panels)))
    below = _below_banner(figure, lines=heading.count("\n") + 1)
    figure.suptitle(heading, y=below, fontweight="bold", fontsize=11)
    return figure


def face_figure(face: Face) -> Figure:
    """Equilateral triangles, two in a row, over one scale of colours; a heading is for the caller to set."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    columns = min(2, len(face.panels)) or 1
    rows = -(-len(face.panels) // columns) or 1
    figure = Figure(figsize=(4.1 * columns + 1, 3.5 * rows + 0.9), layout="constrained")
    axis = face_axis(face)
    norm = (LogNorm if axis.log else Normalize)(axis.low, axis.high)
    colours = LinearSegmentedColormap.from_list("costs", styles.COSTS).with_extremes(bad=styles.NO_NUMBER)
    grid = figure.subplots(rows, columns, squeeze=False)
    drawn = None
    for place, axes in enumerate(grid.flat):
        if place < len(face.panels):
            drawn = _draw_panel(axes, face, face.panels[place], norm, colours)
        else:
            axes.set_axis_off()
    if drawn is not None:
        name = "ε (logarithmic)" if axis.log else "ε"
        bar = figure.colorbar(drawn, ax=grid, label=name, shrink=0.75, format=StrMethodFormatter("{x:g}"))
        if axis.log:
            bar.set_ticks(axis.round_ticks(most=9))
            bar.minorticks_off()
    return figure


def _draw_panel(axes: Axes, face: Face, panel: Panel, norm: Any, colours: Any) -> Any:
    """The third model at the lower left, the first at the lower right, the second on top."""
    from matplotlib.collections import PolyCollection

    height = math.sqrt(3) / 2
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.set_xlim(-0.2, 1.2)
    axes.set_ylim(-0.16, height + 0.13)
    axes.set_title(wrapped(wording.label(panel), 40), fontsize=10)
    first, second, third = (wording.short(name, 20) for name in face.names)
    for x, y, name, vertical in (
        (1, -0.03, first, "top"),
        (0.5, height + 0.03, second, "bottom"),
        (0, -0.03, third, "top"),
    ):
        axes.text(x, y, name, ha="center", va=vertical, fontsize=9)
    # A cell a point, as they were computed: on the sides of the triangle, where a model drops out, ε often jumps.
    size = len(panel.epsilons)
    rows, columns = np.nonzero(np.add.outer(np.arange(size), np.arange(size)) < size)
    step = 1 / max(size - 1, 1)
    corners = step / math.sqrt(3) * np.exp(1j * math.pi * (np.arange(6) / 3 + 1 / 6))
    centres = step * (columns + rows * np.exp(1j * math.pi / 3))
    cells = centres[:, None] + corners
    costs = np.ma.masked_invalid(panel.epsilons[rows, columns])
    # As one image also in SVG: thousands of cells would show their seams.
    drawn = PolyCollection(np.stack([cells.real, cells.imag], axis=-1), norm=norm, cmap=colours, rasterized=True)  # type: ignore[arg-type]
    drawn.set_array(costs)
    drawn.set_edgecolor("face")
    drawn.set_linewidth(0.3)
    axes.add_collection(drawn)
    return drawn


def _below_banner(figure: Figure, lines: int = 0) -> float:
    """Leave the first line to the banner, and so many to a heading: the layout does not see what is placed by hand."""
    below = 1 - 0.25 / figure.get_figheight()
    figure.set_layout_engine("constrained", rect=(0, 0, 1, below - 0.3 * lines / figure.get_figheight()))
    return below


def _one_plot(heading: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.4))
    _below_banner(figure)
    axes = figure.subplots()
    axes.set_title(wrapped(heading, 72), fontweight="bold", fontsize=11, pad=8)
    return figure, axes


def _draw_line(axes: Axes, look: styles.Style, x: Array, y: Array, **how: Any) -> None:
    shown = np.isfinite(x) & np.isfinite(y)
    every = max(1, len(x) // 12)
    marker = {"marker": "o", "markersize": 5, "markevery": every} if look.marked or len(x) == 1 else {}
    axes.plot(np.where(shown, x, np.nan), np.where(shown, y, np.nan), **stroke(look), **marker, **how)  # type: ignore[arg-type]


def stroke(look: styles.Style) -> dict[str, Any]:
    """How matplotlib draws a line of this style."""
    return {"color": look.colour, "linewidth": 1.8, "linestyle": (0, (5, 3)) if look.dashed else "-"}


def _legend(
    figure: Figure,
    looks: Sequence[styles.Style],
    names: Sequence[str],
    extra: Sequence[tuple[dict[str, Any], str]] = (),
) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **stroke(look), marker="o" if look.marked else "", markersize=5) for look in looks]
    handles += [Line2D([], [], **how) for how, _ in extra]
    legend_below(figure, handles, [*names, *(name for _, name in extra)])


def legend_below(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Names below the plot, where they cover nothing, each beside its handle: an artist, or several as a tuple."""
    texts = [wrapped(name, LEGEND_WIDTH) for name in names]
    columns = 2 if len(texts) > 2 else 1
    # A label that begins with an underscore would be left out, so labels are set afterwards.
    legend = figure.legend(
        handles,
        [str(n) for n in range(len(texts))],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
    )
    for place, text in zip(legend.get_texts(), texts, strict=True):
        place.set_text(text)


def set_axis(axes: Axes, which: str, axis: Axis, name: str, ticks: Mapping[float, str] | None = None) -> None:
    """From where to where; a logarithmic axis has plain numbers, or these, as they are written here."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, StrMethodFormatter

    side = axes.xaxis if which == "x" else axes.yaxis
    if axis.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        side.set_major_locator(FixedLocator(axis.round_ticks(most=9) if ticks is None else list(ticks)))
        side.set_major_formatter(FixedFormatter(list(ticks.values())) if ticks else StrMethodFormatter("{x:g}"))
        side.set_minor_formatter(NullFormatter())
    (axes.set_xlim if which == "x" else axes.set_ylim)(axis.low, axis.high)
    side.set_label_text(name)


def wrapped(text: str, width: int) -> str:
    """The text in lines of so many characters."""
    return "\n".join(textwrap.wrap(text, width)) or text
