"""Figures as files, PNG, SVG and PDF, for papers and slides: as wide as a column, or as two.

Guarantees: the same drawings give the same bytes with the same matplotlib; no global state of pyplot is touched;
no text is below seven points where a figure is printed as wide as it is; a legend stands below what is drawn and never
on it; panels have letters; a banner stands above all else.
Refuses: to be made without matplotlib; folders that do not exist; two drawings of one name.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmerge.errors import InvalidInputError
from dpmerge.extras import needs_extra
from dpmerge.report import styles
from dpmerge.report.plot_axes import SMALL, TEXT, letters
from dpmerge.report.plot_layout import panels_figure, plot_figure_alone
from dpmerge.report.plot_view import lines
from dpmerge.report.plots import Drawing, Heatmaps, Panels
from dpmerge.report.triangle_pictures import triangles
from dpmerge.report.whole_files import existing_folder, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 240
HEADING = 8.0

_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "dpmerge",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": styles.GRID,
    "grid.linewidth": 0.5,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "text.usetex": False,
}


def write_plot_pictures(drawings: Sequence[Drawing], folder: Path, kinds: Sequence[str] = ("png",)) -> list[Path]:
    """Write every drawing as NAME.png, or as other kinds, and say where.

    Args:
        drawings: What is drawn, each under a name of its own.
        folder: Where to; it must exist.
        kinds: What the files' names end in: `png`, `svg` and `pdf`.

    Returns:
        The files, in the order of the drawings.

    Raises:
        InvalidInputError: matplotlib or the folder is missing, or two drawings have one name.
    """
    names = [drawing.name for drawing in drawings]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInputError("drawings", names, "a name of its own for every drawing", found=f"{twice} twice")
    written = []
    with settings():
        existing_folder(folder)
        for drawing in drawings:
            figure = plot_figure(drawing)
            written += [_write(figure, folder / f"{drawing.name}.{kind}", kind) for kind in kinds]
    return written


@contextmanager
def settings() -> Iterator[None]:
    """Within it figures are made and written; afterwards matplotlib is as it was."""
    with needs_extra("report", by="a picture"):
        import matplotlib
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def plot_figure(drawing: Drawing) -> Figure:
    """One drawing as a figure of matplotlib, to be made within `settings`.

    Args:
        drawing: What is drawn.

    Returns:
        A figure that pyplot does not know of.

    Raises:
        InvalidInputError: A series has x, y and error of different lengths.
    """
    if isinstance(drawing, Heatmaps):
        figure = triangles(drawing)
    else:
        figure = panels_figure(drawing) if isinstance(drawing, Panels) else plot_figure_alone(drawing)
    _head(figure, drawing)
    return figure


_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def _write(figure: Figure, file: Path, kind: str) -> Path:
    """Without a date: the same figure gives the same bytes."""
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, dpi=DPI, metadata=_UNDATED.get(kind, {}))
    return write_whole(file, stream.getvalue())


def _head(figure: Figure, drawing: Drawing) -> None:
    """Banner, heading and note, above all else; the figure grows by what they take."""
    width, height = figure.get_size_inches()
    inside = 72 * width - 16
    parts: list[tuple[list[str], float, dict[str, Any]]] = [
        (lines(drawing.banner, letters(inside, SMALL)), SMALL, {"color": styles.TARGET}),
        (lines(drawing.heading, letters(inside, 1.14 * HEADING)), HEADING, {"fontweight": "bold"}),
        (lines(drawing.note, letters(inside, SMALL)), SMALL, {"color": "#555"}),
    ]
    taken = [len(text) * 1.25 * size / 72 + 0.04 if text else 0.0 for text, size, _ in parts]
    taller = height + sum(taken) + 0.06
    figure.set_size_inches(width, taller)
    figure.set_layout_engine("constrained", w_pad=0.05, h_pad=0.04, rect=(0, 0, 1, (height - 0.02) / taller))
    top = 0.05
    for (text, size, how), takes in zip(parts, taken, strict=True):
        if text:
            figure.text(0.5, 1 - top / taller, "\n".join(text), ha="center", va="top", fontsize=size, **how)
            top += takes
