"""Figures of divided memory and divided sequences: ZeRO's stages, ring attention as it turns."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle

from tutorial_dl import figure_style as style
from tutorial_dl.course.plotting.dimensions import looks_of
from tutorial_dl.course.plotting.splitting import check_ranks, of_ranks
from tutorial_dl.figure_style import Lines, Numbers
from tutorial_dl.model_parallel.positions import Positions

EMPTY = "#F2F2F2"


def memory_ladder(names: Sequence[str], measured: Lines, predicted: Numbers) -> style.Figure:
    """Bytes per rank, by stage: bars of what was measured, and a line where it was predicted to be.

    Args:
        names: Of the k bars.
        measured: "weights", "gradients" and "state" -> bytes, (k,).
        predicted: Bytes in total, (k,).
    """
    with style.axes(width=8.0, height=1.2 + 0.5 * len(names)) as ax:
        parts = {kind: np.asarray(of) / 1024 for kind, of in measured.items()}
        style.stacked(ax, range(len(names)), parts, looks_of(parts))
        style.rows(ax, list(names))
        for row, total in enumerate(predicted):
            style.upright(ax, total / 1024, row, 0.42, "predicted total", linewidth=2)
        ax.set(xlabel="KiB per rank, measured", title="What a rank holds between two steps")
        style.legend_beside(ax)
    return ax.figure


def ring_attention_film(ranks: int = 4) -> style.Film:
    """Blocks of keys and values on their way round the ring, and the scores they give.

    Args:
        ranks: C, from 2 to 7. Left: each rank and the block that it holds. Right: which pairs of
            queries (rows) and keys (columns) have been computed, in the colour of the keys.
    """
    check_ranks(ranks, len(style.COLOURS))
    with style.panels(1, 2, width=4.2, height=4.0) as (figure, panels):
        return style.Film(figure, _turns(*panels[0], ranks), milliseconds=1200, hold=3000)


def _turns(ring: Axes, scores: Axes, ranks: int) -> Iterator[None]:
    places = style.circle(ranks)
    ring.set(xlim=(-2.1, 2.1), ylim=(-1.6, 1.6), aspect="equal")
    ring.set_axis_off()
    _grid(scores, ranks, "keys and values of rank", "queries of rank")
    for rank, place in enumerate(places):
        _arrow(ring, place, places[(rank + 1) % ranks])
        side = "center" if abs(place[0]) < 0.1 else "left" if place[0] > 0 else "right"
        ring.text(*(1.42 * place), f"rank {rank}", weight="bold", size=9, ha=side, va="center")
    held, words = [], []
    for place in places:
        held.append(ring.add_patch(Circle(place, 0.3, edgecolor="white", linewidth=2, zorder=3)))
        words.append(style.middle(ring, *place, "", color="white", weight="bold", zorder=4))
    for step in range(ranks):
        for rank in range(ranks):
            block = (rank - step) % ranks
            held[rank].set_facecolor(style.colour(block))
            words[rank].set_text(f"k{block}")
            _square(scores, rank, block, style.colour(block), f"{step}")
        ring.set_title(f"Step {step}: each rank\nuses the block it holds", size=10)
        scores.set_title("Computed so far,\nwith the step", size=10)
        yield


def causal_work(ranks: int = 4) -> style.Figure:
    """Which rank computes which pairs of causal attention, in both orders of the sequence.

    Args:
        ranks: C, from 2 to 7. Empty pairs need not be computed: their keys are later.
    """
    check_ranks(ranks, len(style.COLOURS))
    with style.panels(1, 2, width=4.2, height=4.4) as (figure, panels):
        for ax, order in zip(panels[0], ("in order", "zigzag"), strict=True):
            positions = Positions(4 * ranks, ranks, order)
            owner = {piece: r for r, mine in enumerate(positions.pieces) for piece in mine}
            _grid(ax, len(owner), "pieces of keys", "pieces of queries")
            work = [0.0] * ranks
            for query, rank in owner.items():
                for key in range(query + 1):
                    _square(ax, query, key, style.colour(rank), f"{rank}")
                    work[rank] += 4 * (ranks / len(owner)) ** 2  # in quarters of the larger pieces
            shown = ", ".join(f"{one:g}" for one in work)
            ax.set_title(f"{order}: work of ranks {shown}", size=10)
        style.patch_legend(figure, of_ranks(ranks))
    return figure


def _grid(ax: Axes, n: int, across: str, down: str) -> None:
    for row in range(n):
        for column in range(n):
            _square(ax, row, column, EMPTY)
    ax.set(xlim=(0, n), ylim=(n, 0), aspect="equal", xlabel=across, ylabel=down)
    ax.set_xticks(np.arange(n) + 0.5, range(n))
    ax.set_yticks(np.arange(n) + 0.5, range(n))
    style.bare(ax)


def _square(ax: Axes, row: int, column: int, colour: str, words: str = "") -> None:
    letters = {"color": "white", "size": 9}
    style.cell(ax, (column, row), (1, 1), words, letters, facecolor=colour, edgecolor="white")


def _arrow(ax: Axes, start: np.ndarray, end: np.ndarray) -> None:
    way = (end - start) / np.linalg.norm(end - start)
    style.arrow(ax, start + 0.36 * way, end - 0.36 * way, color=style.GREY, mutation_scale=14)
