"""Figures of ranks and their messages: which rank sends to which, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from tutorial_dl import figure_style as style

__all__ = ["message_times", "ranks"]


def ranks(
    contents: Sequence[str],
    messages: Sequence[tuple[int, int]] = (),
    title: str = "",
) -> style.Figure:
    """Ranks as boxes in a row with what each holds in memory, and messages as arrows.

    Args:
        contents: text in the box of each rank, such as its pid or its variables.
        messages: (from, to) ranks, in the order they are sent; several messages are numbered.
    """
    n = len(contents)
    # Messages to the right pass above the boxes, those to the left below; longer ones farther out.
    above = max([to - at for at, to in messages], default=0)
    below = max([at - to for at, to in messages], default=0)
    low, high = -0.62 - 0.42 * max(below, 0), 0.62 + 0.42 * max(above, 0)
    for at, to in messages:
        if not (0 <= at < n and 0 <= to < n and at != to):
            raise ValueError(
                f"message {at} to {to}: both must be ranks from 0 to {n - 1}, and different"
            )
    with style.axes(width=max(1.7 * n, 4.0), height=1.0 + 0.8 * (high - low)) as ax:
        for rank, text in enumerate(contents):
            colour = style.colour(rank)
            box = FancyBboxPatch(
                (rank - 0.36, -0.4), 0.72, 0.8, boxstyle="round,pad=0.02",
                facecolor="white", edgecolor=colour, linewidth=2,
            )  # fmt: skip
            ax.add_patch(box)
            ax.text(rank, 0.26, f"rank {rank}", ha="center", va="center", weight="bold")
            ax.text(rank, -0.1, text, ha="center", va="center", family="monospace", size=9)
        for number, (at, to) in enumerate(messages, start=1):
            side = 1 if to > at else -1
            reach = 0.42 * abs(to - at)
            start, end = (at + 0.12 * side, 0.45 * side), (to - 0.12 * side, 0.45 * side)
            bend = -reach / abs(end[0] - start[0]) * 1.6
            arrow = FancyArrowPatch(
                start, end, connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>",
                mutation_scale=14, color=style.BLACK, linewidth=1.4,
            )  # fmt: skip
            ax.add_patch(arrow)
            if len(messages) > 1:
                middle = (at + to) / 2, side * (0.45 + 0.8 * reach)
                ax.text(
                    *middle, str(number), ha="center", va="center", size=9,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
                )  # fmt: skip
        ax.set(xlim=(-0.6, n - 0.4), ylim=(low, high), title=title, aspect="equal")
        ax.set_axis_off()
    return ax.figure


def message_times(
    sizes: np.ndarray,
    seconds: np.ndarray,
    lines: Mapping[str, tuple[float, float]],
    title: str = "A message costs a latency plus its bytes",
) -> style.Figure:
    """Time and bandwidth of a message by its size: measured, and predicted by alpha + n beta.

    Args:
        sizes: message sizes in bytes, shape (k,).
        seconds: time of one message of each size, one way, shape (k,).
        lines: legend entry -> (alpha in s, beta in s/byte); n½ is marked for the last line.
    """
    sizes, seconds = np.asarray(sizes, float), np.asarray(seconds, float)
    if sizes.shape != seconds.shape:
        raise ValueError(
            f"seconds must have one time per size: {sizes.size} sizes, got {seconds.size} times"
        )
    grid = np.geomspace(sizes.min(), sizes.max(), 200)
    with style.panels(1, 2, width=4.8, height=3.8) as (figure, panels):
        time, bandwidth = panels[0]
        time.plot(sizes, 1e6 * seconds, "o", color=style.MEASURED, label="measured")
        bandwidth.plot(sizes, 1e-9 * sizes / seconds, "o", color=style.MEASURED, label="measured")
        for number, (label, (alpha, beta)) in enumerate(lines.items()):
            colour = (style.PREDICTED, style.RED, style.GREEN)[number % 3]
            look = style.line(number) | {"color": colour}
            time.plot(grid, 1e6 * (alpha + grid * beta), label=label, **look)
            bandwidth.plot(grid, 1e-9 * grid / (alpha + grid * beta), label=label, **look)
        alpha, beta = list(lines.values())[-1]
        half = alpha / beta
        for ax in (time, bandwidth):
            ax.axvline(half, color=style.GREY, linewidth=1)
            ax.set_xlabel("message (bytes)")
            ax.set_xscale("log", base=2)
        time.set(yscale="log", ylabel="time (µs)", title=title)
        bandwidth.set(yscale="log", ylabel="bandwidth (GB/s)", title="Half the bandwidth at n½")
        bandwidth.annotate(
            f"n½ = {_bytes(half)}", (half, 0), xycoords=("data", "axes fraction"),
            xytext=(5, 8), textcoords="offset points", color=style.GREY,
        )  # fmt: skip
        time.legend()
    return figure


def _bytes(n: float) -> str:
    unit, size = next(((u, s) for u, s in (("MiB", 2**20), ("KiB", 2**10)) if n >= s), ("bytes", 1))
    return f"{n / size:.3g} {unit}"
