"""The look that all figures share: colours, sizes, and a Figure that displays in a notebook.

    from tutorial_dl import figure_style as style

    @style.one_panel("A ring has no bottleneck", "ranks", "seconds", log_x_base=2)
    def latency(ax, ranks, predicted, measured):
        style.predicted_measured(ax, ranks, predicted, measured)

    latency(ranks, predicted, measured, title="Another title")      # returns a Figure

The colours are those of Okabe and Ito ("Color universal design", 2008), which people with any of
the usual colour deficiencies can tell apart. Colour never carries a meaning alone: predictions are
lines, measurements are markers.
"""

import inspect
import io
import os
import pickle
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import NullLocator

__all__ = ["Figure", "Film"]  # the rest is for the files of this package: style.axes, style.BLUE

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, RED, PINK = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#7F7F7F"

# In the order of use. Yellow is left out: it is too faint for a line on white.
COLOURS = (BLUE, ORANGE, GREEN, RED, PINK, SKY, BLACK)
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
PREDICTED, MEASURED = BLACK, BLUE
BAND = {"linewidth": 9, "alpha": 0.3, "solid_capstyle": "round"}  # others on it can be seen

Numbers = Sequence[float] | np.ndarray  # (k,)
Lines = Mapping[str, Numbers]  # name -> (k,)

WIDTH, HEIGHT = 6.4, 4.0  # inches, one panel
# With this variable in the environment, a notebook also keeps what slides need: a larger film, and
# the figure itself, which is drawn anew in the size that it has on a slide (slide_figures.py).
KEEP = "TUTORIAL_DL_KEEP_FIGURES"
KEPT_FIGURE, KEPT_FILM = "application/x-pickled-figure", "application/x-large-gif"
# Pixels of a slide, 1280 wide, per inch of a figure: 9 points there are 18 points on a page of
# 13.3 by 7.5 inches.
SLIDE_DPI = 192
SLIDE_TYPE = 9  # points, at least
SLIDE_FILM = (1152, 520)  # pixels
# Figures on pages of JupyterLab's dark theme, and of VS Code's.
DARK = 'body[data-jp-theme-light="false"] .tdl-figure, body.vscode-dark .tdl-figure'

RC = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": matplotlib.cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "font.size": 10,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


class Figure(MatplotlibFigure):
    """A figure that a notebook shows when it is a cell's value, without pyplot.

    pyplot keeps every figure alive, and shows one a second time at the end of the cell.
    """

    def draw(self, renderer) -> None:
        # Ticks and grid lines are created while a figure is drawn, so the look must hold then too.
        with matplotlib.rc_context(RC):
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", bbox_inches="tight")
        return data.getvalue()

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        png = b64encode(self._repr_png_()).decode()
        found = {"image/png": png, "text/html": _image("Figure", "png", png)}
        kept = {KEPT_FIGURE: b64encode(pickle.dumps(self)).decode()} if os.environ.get(KEEP) else {}
        return found | kept


class Film:
    """An animation: a GIF, which needs no player and no script.

    `frames` yields after each frame is drawn on `figure`. A frame is shown for so many
    milliseconds, the last one for `hold`.
    """

    def __init__(
        self, figure: Figure, frames: Iterator[None], milliseconds: int = 120, hold: int = 1500
    ):
        canvas, palette = FigureCanvasAgg(figure), _palette()
        forms = {"image/gif": (figure.get_size_inches(), figure.dpi)}
        if os.environ.get(KEEP):
            forms[KEPT_FILM] = np.array(SLIDE_FILM) / SLIDE_DPI, SLIDE_DPI
        places = {}  # of the axes, by form: all frames keep the layout of the first
        pictures = {mime: [] for mime in forms}

        def draw(mime: str) -> np.ndarray:
            size, dpi = forms[mime]
            figure.set_dpi(dpi)
            figure.set_size_inches(size)
            for ax, place in zip(figure.axes, places.get(mime, ()), strict=False):
                ax.set_position(place)
            with _type_of(mime, figure):
                canvas.draw()
            return np.asarray(canvas.buffer_rgba())

        for _ in frames:
            if not places:
                for mime in forms:
                    draw(mime)
                    places[mime] = [ax.get_position(original=True) for ax in figure.axes]
                figure.set_layout_engine("none")  # steady, and faster
            for mime, made in pictures.items():
                made.append(_indices(draw(mime), palette))
        self.frames = len(pictures["image/gif"])
        if not self.frames:
            raise ValueError("a film needs at least one frame, got none")
        waits = [milliseconds] * (self.frames - 1) + [hold]
        self._gifs = {mime: _gif(made, palette, waits) for mime, made in pictures.items()}
        self.gif = self._gifs["image/gif"]

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        # As HTML: JupyterLab would show image/gif too, but nbconvert's pages would leave it out.
        words = f"Film of {self.frames} frames"
        found = {mime: b64encode(gif).decode() for mime, gif in self._gifs.items()}
        page = _image(words, "gif", found.pop("image/gif"))
        return found | {"text/html": page, "text/plain": f"<{words}>"}


def _image(words: str, kind: str, data: str) -> str:
    """An image in base64 as HTML: on a dark page, what is light becomes dark, and hues stay."""
    style = f"<style>{DARK} {{ filter: invert(.88) hue-rotate(180deg); }}</style>"
    look = 'class="tdl-figure" style="max-width:100%"'
    return f'<img {look} alt="{words}" src="data:image/{kind};base64,{data}">{style}'


def _gif(frames: Sequence[np.ndarray], palette: np.ndarray, waits: list[int]) -> bytes:
    """A GIF of indices into the palette, (height, width) each, shown for so many milliseconds."""
    from PIL import Image

    first, *others = pictures = [Image.fromarray(frame) for frame in frames]
    for picture in pictures:
        picture.putpalette(palette.tobytes())
    data = io.BytesIO()
    first.save(data, "gif", save_all=True, append_images=others, duration=waits, loop=0)
    return data.getvalue()


def enlarge_type(figure: MatplotlibFigure) -> None:
    """Make all type large enough for a slide."""
    for text in figure.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), SLIDE_TYPE))


@contextmanager
def _type_of(mime: str, figure: MatplotlibFigure) -> Iterator[None]:
    """While it lasts, the figure has the type of this form of a film: a slide's is enlarged."""
    sizes = [(text, text.get_fontsize()) for text in figure.findobj(Text)]
    if mime == KEPT_FILM:
        enlarge_type(figure)
    yield
    for text, size in sizes:
        text.set_fontsize(size)


def _palette() -> np.ndarray:
    """The 253 colours of a film, shape (253, 3): greys, and each colour in 27 tints up to white.

    They are the same for every frame; otherwise colours would flicker from frame to frame.
    """
    greys = np.repeat(np.linspace(0, 255, 64)[:, None], 3, axis=1)  # (64, 3)
    colours = np.array([to_rgb(c) for c in (*COLOURS[:-1], YELLOW)]) * 255  # (7, 3): black is grey
    tints = np.linspace(0, 1, 27, endpoint=False)[:, None, None]  # (27, 1, 1)
    tinted = colours + tints * (255 - colours)  # (27, 7, 3)
    return np.concatenate([greys, tinted.reshape(-1, 3)]).round().astype(np.uint8)


def _indices(picture: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """The nearest colour of `palette` for every pixel: (height, width, 4) -> (height, width)."""
    red, green, blue = np.moveaxis(picture[..., :3].astype(np.int32), -1, 0)
    packed, where = np.unique(red << 16 | green << 8 | blue, return_inverse=True)
    colours = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)  # (colours, 3)
    away = ((colours[:, None] - palette.astype(np.int32)) ** 2).sum(axis=2)  # (colours, 253)
    return away.argmin(axis=1).astype(np.uint8)[where].reshape(picture.shape[:2])


@contextmanager
def axes(ax: Axes | None = None, width: float = WIDTH, height: float = HEIGHT) -> Iterator[Axes]:
    """Yield `ax`, or the axes of a new one-panel figure, with the common look in effect."""
    with matplotlib.rc_context(RC):
        if ax is None:
            ax = Figure(figsize=(width, height), layout="constrained").subplots()
        yield ax


def one_panel(
    title: str, xlabel: str = "", ylabel: str = "", *, width: float = WIDTH, height: float = HEIGHT,
    legend: str | None = "best", log_x_base: int = 0, log_y_digits: Iterable[int] = (),
    **properties,
) -> Callable[[Callable[..., None]], Callable[..., Figure]]:  # fmt: skip
    """Turn a function that draws on axes into one that returns a figure of one panel.

    The new function takes the same arguments without the axes, and two more: `title`, and `ax`, the
    axes to draw on if not those of a new figure. `legend` is its place on the axes, or "beside"
    them; None: no legend. With `log_x_base` x is logarithmic (`log_x`), with ticks at the first
    argument's numbers, with `log_y_digits` y is (`log_y`). `properties` are of the axes, as for
    `Axes.set` (yscale, ylim, ...).
    """
    labels = {"xlabel": xlabel, "ylabel": ylabel}
    labels = {which: words for which, words in labels.items() if words}

    def figure_of(draw: Callable[..., None]) -> Callable[..., Figure]:
        @wraps(draw)
        def drawn(*data, title: str = title, ax: Axes | None = None, **options) -> Figure:
            with axes(ax, width, height) as ax:
                draw(ax, *data, **options)
                if log_x_base:
                    log_x(ax, data[0], log_x_base)
                if log_y_digits:
                    log_y(ax, log_y_digits)
                ax.set(title=title, **labels, **properties)
                if legend == "beside":
                    legend_beside(ax)
                elif legend:
                    ax.legend(loc=legend)
            return ax.figure

        of_draw, added = inspect.signature(draw), inspect.signature(drawn, follow_wrapped=False)
        own = [added.parameters[name] for name in ("title", "ax")]
        parameters = [*list(of_draw.parameters.values())[1:], *own]
        drawn.__signature__ = added.replace(parameters=parameters)
        return drawn

    return figure_of


@contextmanager
def panels(
    rows: int = 1, columns: int = 1, width: float = WIDTH, height: float = HEIGHT, title: str = "",
    **options,
) -> Iterator[tuple[Figure, np.ndarray]]:  # fmt: skip
    """Yield a new figure and its axes, shape (rows, columns), with the common look in effect.

    `width` and `height` are those of one panel, `title` is that of the figure. `options` go to
    `Figure.subplots`.
    """
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        if title:
            figure.suptitle(title, x=0.01, ha="left", weight="bold", size=RC["axes.titlesize"])
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)


@contextmanager
def panel_each(
    names: Iterable[str], columns: int, width: float, height: float, **options
) -> Iterator[tuple[Figure, dict[str, Axes]]]:
    """Yield a new figure and name -> axes, in rows of at most `columns`; as `panels` otherwise."""
    names = list(names)
    columns = min(columns, len(names))
    with panels(-(-len(names) // columns), columns, width, height, **options) as (figure, grid):
        for ax in grid.flat[len(names) :]:
            ax.set_axis_off()
        yield figure, dict(zip(names, grid.flat, strict=False))


# Lines and markers -----------------------------------------------------------------------------


def colour(number: int) -> str:
    """Colour `number` of the cycle: 0, 1, 2, ..."""
    return COLOURS[number % len(COLOURS)]


def line(number: int) -> dict[str, Any]:
    """Colour and dashes of line `number`, for `ax.plot(x, y, **line(0))`."""
    return {"color": colour(number), "linestyle": LINES[number % len(LINES)]}


def marks(number: int) -> dict[str, Any]:
    """Colour and marker `number` without a line, for `ax.plot(x, y, **marks(0))`."""
    marker = MARKERS[number % len(MARKERS)]
    return {"color": colour(number), "marker": marker, "linestyle": "none"}


def predicted_measured(
    ax: Axes, x: Numbers, predicted: Numbers, measured: Numbers, labels=("predicted", "measured")
) -> None:
    """Draw a prediction as a black line and measurements as blue markers, all of shape (k,)."""
    ax.plot(x, predicted, color=PREDICTED, label=labels[0])
    ax.plot(x, measured, "o", color=MEASURED, label=labels[1])


def predicted_measured_each(
    ax: Axes, x: Numbers, predicted: Lines, measured: Lines, every: int = 1
) -> None:
    """Draw a predicted line and measured markers for each name, in a colour of its own.

    The legend names the markers only, so the label of an axis should say "lines: predicted". There
    is one marker per `every` measurements.
    """
    if set(predicted) != set(measured):
        raise ValueError(
            "predicted and measured must have the same names; got "
            f"{sorted(predicted)} and {sorted(measured)}"
        )
    for number, name in enumerate(predicted):
        ax.plot(x, predicted[name], **line(number))
        ax.plot(x, measured[name], **marks(number), markevery=every, label=name)


def stacked(
    ax: Axes, rows: Sequence, parts: Lines, looks: Iterable[Mapping[str, Any]], height: float = 0.6
) -> np.ndarray:
    """Draw horizontal bars made of parts, name -> widths (rows,), and return where they end."""
    ends = np.zeros(len(rows))
    for (name, widths), look in zip(parts.items(), looks, strict=False):
        ax.barh(rows, widths, left=ends, height=height, label=name, edgecolor="white", **look)
        ends = ends + widths
    return ends


def cell(
    ax: Axes, corner: Sequence[float], size: Sequence[float], words: str = "",
    type: Mapping[str, Any] | None = None, **look,
) -> None:  # fmt: skip
    """Draw a rectangle from its lower left corner, and words, which look as `type`, in it."""
    ax.add_patch(Rectangle(corner, *size, **look))
    if words:
        middle(ax, corner[0] + size[0] / 2, corner[1] + size[1] / 2, words, **(type or {}))


def middle(ax: Axes, x: float, y: float, words: str, **look) -> Text:
    """Write words, with their middle at (x, y)."""
    return ax.text(x, y, words, ha="center", va="center", **look)


# Axes ------------------------------------------------------------------------------------------


def log_x(ax: Axes, ticks: Sequence[float], base: int = 2) -> None:
    """Make the x axis logarithmic, with these ticks and no others."""
    ax.set_xscale("log", base=base)
    ax.set_xticks(ticks, [f"{tick:.9g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())


def log_y(ax: Axes, leading: Iterable[int] = (1, 2, 5)) -> None:
    """Make the y axis logarithmic; ticks have these leading digits, as plain numbers: 0.2.

    Where fewer than three such ticks are in sight, there are ticks for more digits.
    """
    ax.set_yscale("log")
    low, high = ax.get_ylim()  # of the lines, which must have been drawn
    for digits in (leading, (1, 2, 5), (1, 2, 3, 5, 7)):
        ticks = [digit * 10.0**power for power in range(-20, 20) for digit in digits]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) > 2:
            break
    if shown:
        ax.set_yticks(shown, [f"{tick:g}" for tick in shown])
        ax.yaxis.set_minor_locator(NullLocator())


def upright(ax: Axes, x: float, row: float, half: float, label: str = "predicted", **look) -> None:
    """Draw a prediction as a line across a row, `half` up and down; the first has the label."""
    known = label in ax.get_legend_handles_labels()[1]
    look = {"color": PREDICTED, "label": None if known else label} | look
    ax.plot([x, x], [row - half, row + half], **look)


def rows(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, 2, ... of a horizontal bar chart, from top to bottom."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")


def note(
    ax: Axes,
    words: str,
    at: tuple[float, float],
    offset: tuple[float, float] = (0, 0),
    within: tuple[str, str] = ("data", "data"),
    **look,
) -> None:
    """Write words at (x, y), each "data" or an "axes fraction", plus an offset in points."""
    ax.annotate(words, at, xycoords=within, xytext=offset, textcoords="offset points", **look)


def arrow(ax: Axes, start, end, **look) -> None:
    """Draw an arrow from one (x, y) to another."""
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", **look))


def bare(ax: Axes) -> None:
    """Leave the labels of the axes, without ticks, grid and frame."""
    ax.tick_params(length=0)
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)


def circle(n: int) -> np.ndarray:
    """Places on the unit circle, clockwise from the top: (n, 2)."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    return np.column_stack([np.cos(angles), np.sin(angles)])


def legend_beside(ax: Axes) -> None:
    """Put the legend to the right of the axes, where it hides nothing."""
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def legend_below(ax: Axes, columns: int = 2, loc: str = "outside lower center") -> None:
    """Put the legend below the figure: it hides nothing, and the figure stays narrow."""
    handles, labels = ax.get_legend_handles_labels()
    ax.figure.legend(handles, labels, loc=loc, ncols=columns)


def patch_legend(figure: Figure, looks: Mapping[str, Mapping[str, Any]], **options) -> None:
    """Put a legend of coloured boxes, name -> look, below all axes."""
    handles = [Patch(label=name, **look) for name, look in looks.items()]
    figure.legend(handles=handles, **{"loc": "outside lower center", "ncols": len(looks)} | options)
