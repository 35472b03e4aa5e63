"""Games of two players: paths of the smallest game, and a density that a generator matches."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Numbers


@style.one_panel(
    "Around the equilibrium", "generator x", "discriminator y", height=4.6, legend="beside"
)
def duels(ax, paths: Mapping[str, np.ndarray]):
    """Paths of (x, y), legend entry -> (steps + 1, 2), and the equilibrium at (0, 0)."""
    for number, (label, path) in enumerate(paths.items()):
        ax.plot(*np.transpose(path), color=style.colour(number), linewidth=1.2, label=label)
        ax.plot(*path[-1], style.MARKERS[number], color=style.colour(number))
    ax.plot(0, 0, "*", color=style.BLACK, markersize=13, label="equilibrium")
    ax.set_aspect("equal")


def forger_film(
    data: np.ndarray,
    frames: Sequence[tuple[str, np.ndarray, Callable[[np.ndarray], np.ndarray]]],
    low: float,
    high: float,
    bins: int = 60,
) -> style.Film:
    """An animation: histograms of data and of generated samples, and the discriminator's score.

    Args:
        data: (n,) samples of the data.
        frames: (words, generated samples (m,), score as a function of x) of each frame.
        low, high: the range of x.
    """
    edges = np.linspace(low, high, bins + 1)
    middle, grid = (edges[1:] + edges[:-1]) / 2, np.linspace(low, high, 200)
    heights = [_density(made, edges) for _, made, _ in frames]
    scores = [np.clip(score(grid), -6, 6) for *_, score in frames]
    with style.panels(2, 1, width=7.0, height=2.3, sharex=True) as (figure, ((above,), (below,))):
        of_data = _density(data, edges)
        above.fill_between(middle, of_data, step="mid", color=style.GREY, alpha=0.4, label="data")
        (made,) = above.plot([], [], color=style.BLUE, label="generated")
        above.set(ylabel="density", ylim=(0, 2.2 * of_data.max()), xlim=(low, high))
        above.legend(loc="upper right")
        (score,) = below.plot([], [], color=style.RED, label="score D(x)")
        below.axhline(0, color=style.GREY, linestyle=":")
        below.set(xlabel="x", ylabel="score", ylim=(-6.3, 6.3))
        below.legend(loc="upper right")

        def play() -> Iterator[None]:
            for (words, *_), height, curve in zip(frames, heights, scores, strict=True):
                made.set_data(middle, height)
                score.set_data(grid, curve)
                above.set_title(words)
                yield

        return style.Film(figure, play())


def quality_at_equal_terms(
    runs: Mapping[str, tuple[Numbers, Numbers]], goal: float
) -> style.Figure:
    """Distance of generated samples from the data: by epoch, and by time.

    Args:
        runs: legend entry -> (seconds until the end of each epoch, distances), each (epochs,).
        goal: a distance, drawn as a level.
    """
    size = {"width": 4.8, "height": 3.4, "title": "The same game by every strategy"}
    with style.panels(1, 2, **size, sharey=True) as (figure, ((left, right),)):
        for number, (label, (seconds, distances)) in enumerate(runs.items()):
            line = style.line(number)
            left.plot(np.arange(1, len(distances) + 1), distances, label=label, **line)
            right.plot(seconds, distances, **line)
        for ax, words in ((left, "epochs: equal samples"), (right, "seconds: equal time")):
            ax.axhline(goal, color=style.GREY, linewidth=1)
            ax.set(xlabel=words, yscale="log")
            style.log_y(ax)
        left.set_ylabel("distance of the distributions")
        style.legend_below(left, 3)
    return figure


def _density(samples: np.ndarray, edges: np.ndarray) -> np.ndarray:
    counts, _ = np.histogram(samples, edges)
    return counts / (len(samples) * np.diff(edges))
