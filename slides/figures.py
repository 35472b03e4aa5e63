"""Draws the figures of notebooks for slides: in the size that they have there, with type to match.

A figure that is only enlarged has type of any size. Here, all figures have the same type, at least
18 points on a page of 13.3 by 7.5 inches, and the rest of the figure is laid out around it.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator
from itertools import pairwise

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis, Tick
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import AutoLocator, FixedFormatter, FixedLocator
from matplotlib.transforms import Bbox

from tutorial_dl.figure_style import RC, SLIDE_DPI, Figure, enlarge_type

FINER = 2  # pixels of the picture per pixel of the slide


def png(figure: Figure, width: int, height: int) -> tuple[bytes, list[str]]:
    """A PNG of the figure for this many pixels of a slide, and what is wrong with it.

    The figure is changed. Every finding is a line: words that lie outside or over others, and
    legends over curves.
    """
    figure.set_dpi(SLIDE_DPI)
    figure.set_size_inches(width / SLIDE_DPI, height / SLIDE_DPI)
    enlarge_type(figure)
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04)  # inches; some figures ask for more
    _keep_whole_numbers(figure)
    with matplotlib.rc_context(RC), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of layouts that are not yet possible
        for thins in (False, False, True):  # the layout decides what fits, and depends on it
            _wrap_titles(figure)
            _move_legends(figure)
            for legend in list(figure.legends):
                _make_narrow(legend, figure)
            figure.draw_without_rendering()
            for ax in figure.axes if thins else ():
                for axis in (ax.xaxis, ax.yaxis):
                    _thin_out(axis)
        _clear_curves(figure)
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=FINER * SLIDE_DPI)
        figure.draw_without_rendering()
        return data.getvalue(), list(_flaws(figure))


def _box(artist: Artist) -> Bbox:
    return artist.get_window_extent()


def _keep_whole_numbers(figure: Figure) -> None:
    """Give axes of counts no label at 2.5, if they choose their labels themselves."""
    for ax in figure.axes:
        for axis, of_line in ((ax.xaxis, Line2D.get_xdata), (ax.yaxis, Line2D.get_ydata)):
            locator, values = axis.get_major_locator(), [of_line(line) for line in ax.lines]
            if values and type(locator) is AutoLocator:
                all_values = np.concatenate([np.ravel(one).astype(float) for one in values])
                if (all_values == np.round(all_values)).all():
                    locator.set_params(integer=True)


def _thin_out(axis: Axis) -> None:
    """Leave every second label, if neighbours touch and the labels are numbers, or numbered."""
    while True:
        shown = [
            tick for tick in axis.get_major_ticks() if _is_seen(tick.label1) and _within(axis, tick)
        ]
        boxes = [_box(tick.label1).padded(2) for tick in shown]
        words = [tick for tick in shown if not any(map(str.isdigit, tick.label1.get_text()))]
        if len(shown) < 3 or len(words) > 1 or not any(a.overlaps(b) for a, b in pairwise(boxes)):
            return
        kept = {id(tick) for tick in shown[::2]}
        labels = [
            tick.label1.get_text() if id(tick) in kept else "" for tick in axis.get_major_ticks()
        ]
        axis.set_major_locator(FixedLocator(axis.get_majorticklocs()))
        axis.set_major_formatter(FixedFormatter(labels))
        axis.get_figure(root=True).draw_without_rendering()


def _wrap_titles(figure: Figure) -> None:
    """Break titles and labels of axes that are longer than their room."""
    for text in figure.texts:  # the title of the whole
        _wrap(text, figure.bbox.width, "width")
    for ax in figure.axes:
        titles = {one for one in ax.get_children() if isinstance(one, Text)} - {*ax.texts}
        for text in titles:
            _wrap(text, _room(ax, text), "width")
        _wrap(ax.xaxis.label, _room(ax, ax.xaxis.label), "width")
        _wrap(ax.yaxis.label, _share_of_height(ax), "height")


def _room(ax: Axes, text: Text) -> float:
    """Pixels from the left end of the axes to what stops the text: a panel, a legend, the end."""
    figure, line = ax.get_figure(root=True), _box(text)
    others = [other.get_tightbbox() for other in figure.axes if other.bbox.x0 > ax.bbox.x1]
    others += [
        box for box in map(_box, _legends(figure)) if box.x0 > ax.bbox.x1 and _beside(box, line)
    ]
    return min([*(box.x0 for box in others), figure.bbox.x1]) - ax.bbox.x0


def _beside(one: Bbox, other: Bbox) -> bool:
    return one.y0 < other.y1 and other.y0 < one.y1


def _legends(figure: Figure) -> list[Legend]:
    return [*figure.legends, *filter(None, (ax.get_legend() for ax in figure.axes))]


def _move_legends(figure: Figure) -> None:
    """Put legends of panels that take too much room below all panels; equal entries once."""
    if len(figure.axes) == 1 or figure.legends:
        return
    figure.draw_without_rendering()
    moved = {}
    for ax in figure.axes:
        if legend := ax.get_legend():
            box = _box(legend)
            beside = box.x0 > ax.bbox.x1 - 1
            room = 0.33 * figure.bbox.width if beside else 0.5 * ax.bbox.width
            if box.width > room:
                names = [text.get_text() for text in legend.get_texts()]
                moved.update(zip(names, legend.legend_handles, strict=True))
                legend.remove()
    if moved:
        figure.legend(
            moved.values(), moved, loc="outside lower center", ncols=len(moved)
        )  # fmt: skip


def _make_narrow(legend: Legend, figure: Figure) -> None:
    """Give a legend below all panels fewer columns, if it is wider than the figure."""
    texts = [text.get_text() for text in legend.get_texts()]
    columns = len(texts)
    while columns > 1 and _box(legend).width > figure.bbox.width:
        columns -= 1
        legend.remove()
        legend = figure.legend(
            legend.legend_handles, texts, loc="outside lower center", ncols=columns,
            title=legend.get_title().get_text() or None,
        )  # fmt: skip
        enlarge_type(figure)


PLACES = ("upper right", "upper left", "lower right", "lower left", "upper center", "lower center")


def _clear_curves(figure: Figure) -> None:
    """Move each legend that lies over a curve to where none is, if its panel has such a place."""
    for ax in figure.axes:
        legend, places = ax.get_legend(), iter((*PLACES, "best"))
        while legend is not None and _covers_curve(legend, ax) and (place := next(places, None)):
            legend.set_loc(place)
            figure.draw_without_rendering()


def _covers_curve(legend: Legend, ax: Axes) -> bool:
    box = _box(legend).padded(-8)  # which is free of words
    for line in ax.lines:
        curve = line.get_transform().transform_path(line.get_path())
        if line.get_linestyle() == "None":  # only points
            if box.count_contains(curve.vertices):
                return True
        elif len(curve) and curve.intersects_bbox(box, filled=False):
            return True
    return False


def _share_of_height(ax: Axes) -> float:
    """Pixels for the label of the y axis: little more than the axes, as far as they have a size."""
    figure, spec = ax.get_figure(root=True), ax.get_subplotspec()
    share = len(spec.rowspan) / spec.get_gridspec().nrows if spec else 1
    return min(0.8 * share * figure.bbox.height, max(1.2 * ax.bbox.height, 150))


def _wrap(text: Text, room: float, side: str) -> None:
    words = text.get_text().replace("\n", " ")
    if not words.strip() or "$" in words:
        return
    for lines in range(2, 5):
        if getattr(_box(text), side) <= room:
            return
        text.set_text(
            textwrap.fill(words, max(8, round(1.15 * len(words) / lines)), break_long_words=False)
        )


def _is_seen(artist: Artist | None) -> bool:
    if isinstance(artist, Text) and not artist.get_text().strip():
        return False
    return artist is not None and artist.get_visible()


def _flaws(figure: Figure) -> Iterator[str]:
    """What of a figure's words can't be read."""
    ticks = {
        id(label)
        for ax in figure.axes
        for axis in (ax.xaxis, ax.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for label in (tick.label1, tick.label2)
        if not axis.get_visible() or not ax.axison or not _within(axis, tick)
    }
    texts = [one for one in figure.findobj(Text) if _is_seen(one) and id(one) not in ticks]
    boxes = [(one.get_text().replace("\n", " "), _box(one)) for one in texts]
    page = figure.bbox.padded(2)
    for words, box in boxes:
        if not (
            page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
        ):
            yield f"{words!r} leaves the figure"
    for ax in figure.axes:
        if (legend := ax.get_legend()) and _covers_curve(legend, ax):
            yield f"the legend of panel {ax.get_title(loc='left')!r} lies over a curve"
    for at, (words, box) in enumerate(boxes):
        for others, other in boxes[at + 1 :]:
            if box.width and other.width and box.padded(-2).overlaps(other.padded(-2)):
                yield f"{words!r} and {others!r} lie over each other"


def _within(axis: Axis, tick: Tick) -> bool:
    low, high = sorted(axis.get_view_interval())
    return low <= tick.get_loc() <= high
