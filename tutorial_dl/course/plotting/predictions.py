"""The figure of most predictions: predicted lines, measured markers, and a guess."""

from collections.abc import Iterable, Mapping

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Lines, Numbers


def compared(
    x: Numbers, predicted: Numbers | Lines, measured: Numbers | Lines | Mapping | None = None,
    guess: Mapping | None = None, *, title: str, xlabel: str, ylabel: str,
    x_base: int = 0, y_digits: Iterable[int] = (), levels: Mapping[str, float] | None = None,
) -> style.Figure:  # fmt: skip
    """Predictions as lines, with measurements and guesses as markers, over x, (k,).

    Args:
        predicted: (k,), or name -> (k,).
        measured: The same, with the same names; or x -> value, for some x; or None.
        guess: See `guessed`.
        title, xlabel, ylabel: In words.
        x_base: Base of a logarithmic x axis with a tick at each x; 0: linear.
        y_digits: Leading digits of the ticks of a logarithmic y axis; none: linear.
        levels: Name -> y of horizontal lines.
    """
    with style.axes(width=7.2) as ax:
        if not isinstance(predicted, Mapping):
            some = isinstance(measured, Mapping)
            ax.plot(x, predicted, color=style.PREDICTED, label="predicted")
            if measured is not None:
                pairs = (list(measured), list(measured.values())) if some else (x, measured)
                ax.plot(*pairs, "o", color=style.MEASURED, label="measured")
        elif measured is None:
            for number, (name, values) in enumerate(predicted.items()):
                ax.plot(x, values, label=name, **style.line(number))
        else:
            every = max(1, len(x) // 30)
            style.predicted_measured_each(ax, x, predicted, measured, every)
            ylabel += " (lines: predicted)"
        guessed(ax.figure, guess)
        for number, (name, level) in enumerate((levels or {}).items()):
            dashes = ("--", ":")[number % 2]
            ax.axhline(level, color=style.GREY, linewidth=1, linestyle=dashes, label=name)
        if x_base:
            style.log_x(ax, x, x_base)
        if y_digits:
            style.log_y(ax, y_digits)
        ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
        style.legend_beside(ax)
    return ax.figure


def guessed(figure: style.Figure, guess: Mapping | None, panel: int = 0) -> style.Figure:
    """The figure with a learner's guesses, x -> y, as stars in one of its panels; `...` is none."""
    ax = figure.axes[panel]
    look = {"color": style.ORANGE, "markersize": 13, "markeredgecolor": style.BLACK, "zorder": 4}
    for x, y in (guess or {}).items():
        if y not in (None, ...):
            ax.plot(x, y, "*", **look)
            style.note(ax, "your guess", (x, y), (8, 6), size=9)
    return figure
