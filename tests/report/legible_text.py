"""Whether every text of a figure can be read where it is printed: large enough, whole, and on nothing else."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from dpmerge.report.plot_layout import COLUMN, PAGE
from dpmerge.report.plot_pictures import plot_figure, settings
from dpmerge.report.plots import Drawing

SMALLEST = 7.0
"""Points."""

TOUCHING = 1.0
"""Points by which the boxes of two texts may meet: letters do not fill theirs."""


def complaints(drawing: Drawing) -> list[str]:
    """What cannot be read in the picture of a drawing."""
    with settings():
        figure = plot_figure(drawing)
        FigureCanvasAgg(figure).draw()
        texts = _seen(figure)
        boxes = [each.get_window_extent() for each in texts]
        small = [text for text in texts if text.get_fontsize() < SMALLEST]
        found = [f"{text.get_text()!r}: {text.get_fontsize()} points" for text in small]
        width = figure.get_size_inches()[0]
        found += [] if min(abs(width - each) for each in (COLUMN, PAGE)) < 1e-6 else [f"{width} inches wide"]
        whole, slack = figure.bbox, figure.dpi / 72 * TOUCHING
        for place, (text, box) in enumerate(zip(texts, boxes, strict=True)):
            inside = box.x0 >= whole.x0 and box.y0 >= whole.y0 and box.x1 <= whole.x1 and box.y1 <= whole.y1
            found += [] if inside else [f"{text.get_text()!r} is cut off"]
            for other, beside in zip(texts[:place], boxes[:place], strict=True):
                if _meet(box, beside, slack):
                    found.append(f"{text.get_text()!r} on {other.get_text()!r}")
    return found


def _seen(figure: Figure) -> list[Text]:
    """All but numbers beyond the ends of an axis, and those of axes that are switched off."""
    unseen: set[Text] = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            numbers = zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
            unseen |= {text for text, at in numbers if not (axes.axison and low <= at <= high)}
            unseen |= set(axis.get_ticklabels(minor=True))
            unseen |= set() if axes.axison else {axis.label}
    texts = [each for each in figure.findobj(Text) if isinstance(each, Text) and each not in unseen]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def _meet(one: Bbox, other: Bbox, slack: float) -> bool:
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    up = min(one.y1, other.y1) - max(one.y0, other.y0)
    return across > slack and up > slack
