"""Plots, heatmaps and tables as one page: figures that say what they show when pointed at, their words, then tables.

Guarantees: those of `page_parts`; the banner of a figure stands above the page.
Refuses: tables with rows of different lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpmerge.report.page_parts import figure, framed, section, table
from dpmerge.report.plots import Drawing, Table
from dpmerge.report.whole_files import existing_folder, write_whole


def write_plot_page(
    title: str,
    subtitle: str,
    introduction: Sequence[str],
    drawings: Sequence[Drawing],
    tables: Sequence[Table],
    file: Path,
) -> None:
    """Write the page, whole or not at all.

    Args:
        title: Its first heading.
        subtitle: What stands below that.
        introduction: One paragraph a string.
        drawings: Its figures.
        tables: What stands below them.
        file: Where to; its folder must exist.

    Raises:
        InvalidInputError: The folder is missing, or a table has rows of different lengths.
    """
    existing_folder(file.parent)
    write_whole(file, plot_page(title, subtitle, introduction, drawings, tables).encode())


def plot_page(
    title: str,
    subtitle: str,
    introduction: Sequence[str],
    drawings: Sequence[Drawing],
    tables: Sequence[Table],
) -> str:
    """The page as HTML; arguments and errors as `write_plot_page`."""
    figures = [figure(drawing, f"plot-{number}") for number, drawing in enumerate(drawings)]
    main = "\n".join([*(part for part, _ in figures), *map(_section, tables)])
    banner = " ".join(dict.fromkeys(drawing.banner for drawing in drawings if drawing.banner))
    charts = [chart for _, charts in figures for chart in charts]
    return framed(title, subtitle, introduction, main, charts, banner=banner)


def _section(content: Table) -> str:
    return section(content.heading, f'<div class="wide">{table(content)}</div>')
