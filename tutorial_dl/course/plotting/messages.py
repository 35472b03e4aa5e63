"""Figures of ranks: their messages, how they miss a collective, who waits, and what it costs."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import FancyBboxPatch

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Numbers

WAIT = {"facecolor": "#EEEEEE", "hatch": "////", "edgecolor": "#777777", "linewidth": 0.4}

# When each rank arrives; when the collective ends; markers: (time, rank, shape, colour).
WAYS = {
    "all ranks come": ((4, 5, 4.5), 5, ()),
    "crash: never comes": ((4, 3, 4.5), 10, [(3, 1, "X", style.RED)]),
    "mismatch: other call": (
        (4, 5, 4.5), 10,
        [(4, 0, "o", style.BLACK), (5, 1, "D", style.RED), (4.5, 2, "o", style.BLACK)],
    ),
    "deadlock: a circle": ((4, 5, 4.5), 10, ()),
    "straggler: late": ((4, 8.5, 4.5), 8.5, ()),
}  # fmt: skip


def ranks(
    contents: Sequence[str], messages: Sequence[tuple[int, int]] = (), title: str = ""
) -> style.Figure:
    """Ranks as boxes in a row with what each holds in memory, and messages as arrows.

    Args:
        contents: text in the box of each rank, such as its pid or its variables.
        messages: (from, to) ranks, in the order they are sent; several messages are numbered.
    """
    n = len(contents)
    # Messages to the right pass above the boxes, those to the left below; longer ones farther out.
    above = max([0, *(to - at for at, to in messages)])
    below = max([0, *(at - to for at, to in messages)])
    low, high = -0.62 - 0.42 * below, 0.62 + 0.42 * above
    for at, to in messages:
        _check_pair(at, to, n, f"message {at} to {to}")
    with style.axes(width=max(1.7 * n, 4.0), height=1.0 + 0.8 * (high - low)) as ax:
        for rank, text in enumerate(contents):
            look = {"facecolor": "white", "edgecolor": style.colour(rank), "linewidth": 2}
            box = FancyBboxPatch((rank - 0.36, -0.4), 0.72, 0.8, "round,pad=0.02", **look)
            ax.add_patch(box)
            style.middle(ax, rank, 0.26, f"rank {rank}", weight="bold")
            style.middle(ax, rank, -0.1, text, family="monospace", size=9)
        for number, (at, to) in enumerate(messages, start=1):
            side = 1 if to > at else -1
            reach = 0.42 * abs(to - at)
            start, end = (at + 0.12 * side, 0.45 * side), (to - 0.12 * side, 0.45 * side)
            bend = -reach / abs(end[0] - start[0]) * 1.6
            look = {"color": style.BLACK, "linewidth": 1.4, "mutation_scale": 14}
            style.arrow(ax, start, end, connectionstyle=f"arc3,rad={bend}", **look)
            if len(messages) > 1:
                bbox = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                y = side * (0.45 + 0.8 * reach)
                style.middle(ax, (at + to) / 2, y, str(number), size=9, bbox=bbox)
        ax.set(xlim=(-0.6, n - 0.4), ylim=(low, high), title=title, aspect="equal")
        ax.set_axis_off()
    return ax.figure


def message_times(
    sizes: Numbers, seconds: Numbers, lines: Mapping[str, tuple[float, float]]
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
    with style.panels(1, 2, width=4.8, height=3.8) as (figure, ((time, bandwidth),)):
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
            style.log_y(ax, leading=(1,))
        time.set(ylabel="time (µs)", title="The time of a message")
        bandwidth.set(ylabel="bandwidth (GB/s)", title="Half the bandwidth at n½")
        words, where = f"n½ = {_bytes(half)}", ("data", "axes fraction")
        style.note(bandwidth, words, (half, 0), (5, 8), where, color=style.GREY)
        style.legend_below(time, columns=3)
    return figure


def _bytes(n: float) -> str:
    unit, size = next(((u, s) for u, s in (("MiB", 2**20), ("KiB", 2**10)) if n >= s), ("bytes", 1))
    return f"{n / size:.3g} {unit}"


def _check_pair(one: int, other: int, ranks: int, what: str) -> None:
    if not (0 <= one < ranks and 0 <= other < ranks and one != other):
        raise ValueError(f"{what}: both must be ranks from 0 to {ranks - 1}, and different")


# Failures --------------------------------------------------------------------------------------


def ways_to_miss() -> style.Figure:
    """A collective that all ranks join, and the four ways in which one of three ranks misses it."""
    with style.panels(1, len(WAYS), width=2.5, height=2.5) as (figure, axes):
        for ax, (title, (arrivals, end, markers)) in zip(axes[0], WAYS.items(), strict=True):
            crashed = [rank for _, rank, shape, _ in markers if shape == "X"]
            for rank, came in enumerate(arrivals):
                ax.barh(rank, came, 0.6, 0, color=style.BLUE)
                if rank not in crashed:
                    ax.barh(rank, end - came, 0.6, came, **WAIT)
                ax.barh(rank, 10 - end, 0.6, end, color=style.BLUE)
            if end < 10:
                ax.axvline(end, color=style.BLACK, linewidth=2)
            for x, rank, shape, colour in markers:
                look = {"markersize": 11, "markeredgecolor": "white", "zorder": 3}
                ax.plot([x], [rank], shape, color=colour, **look)
            for rank in range(3) if "circle" in title else ():
                look = {"color": style.RED, "linewidth": 2, "zorder": 3, "shrinkA": 0, "shrinkB": 0}
                to = (6 + rank, (rank + 1) % 3)
                style.arrow(ax, (6 + rank, rank), to, mutation_scale=14, **look)
            ax.set(title=title, xlim=(0, 10), ylim=(2.6, -0.6), xlabel="time", xticks=[])
            first = ax is axes[0][0]  # the other panels have the same rows
            ax.set_yticks(range(3), [f"rank {rank}" if first else "" for rank in range(3)])
            ax.tick_params(axis="y", length=0)
            ax.grid(False)
        style.patch_legend(figure, {"computes": {"facecolor": style.BLUE}, "waits": WAIT})
    return figure


def who_waits(panels: Sequence[tuple[str, Mapping[int, int]]], ranks: int) -> style.Figure:
    """Which rank waits for which, one panel per case. Arrows that form a circle are red.

    Args:
        panels: (title, waits) of each panel; waits[r] is the rank that rank r waits for. Leave out
            ranks that do not wait.
        ranks: how many, 2 or more.
    """
    for _, waits in panels:
        for rank, other in waits.items():
            _check_pair(rank, other, ranks, f"rank {rank} waits for {other}")
    places = style.circle(ranks)
    with style.panels(1, len(panels), width=3.2, height=3.0) as (figure, axes):
        for ax, (title, waits) in zip(axes[0], panels, strict=True):
            caught = circle(waits)
            for rank, other in waits.items():
                colour = style.RED if rank in caught else style.BLACK
                look = {"color": colour, "linewidth": 2.2, "mutation_scale": 18}
                look |= {"shrinkA": 26, "shrinkB": 26, "connectionstyle": "arc3,rad=-0.12"}
                style.arrow(ax, places[rank], places[other], **look)
            for rank, (x, y) in enumerate(places):
                waiting = style.RED if rank in caught else style.BLACK
                colour = waiting if rank in waits else style.GREEN
                bbox = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": colour}
                style.middle(ax, x, y, f"rank {rank}", bbox=bbox)
            ax.set(xlim=(-1.5, 1.5), ylim=(-1.35, 1.35), aspect="equal", title=title)
            ax.set_axis_off()
    return figure


def circle(waits: Mapping[int, int]) -> set[int]:
    """The ranks that wait for each other in a circle; empty if there are none."""
    for first in waits:
        path = [first]
        while waits.get(path[-1]) is not None and waits[path[-1]] not in path:
            path.append(waits[path[-1]])
        if waits.get(path[-1]) == first:
            return set(path)
    return set()


@style.one_panel("Two faults, one training run", "epoch", "validation loss", legend=None)
def with_faults(
    ax, undisturbed: Numbers, parts: Sequence[tuple[int, Numbers]], faults: Mapping[float, str]
):
    """The loss of a training run with faults, on top of that of an undisturbed one.

    Args:
        undisturbed: loss after epoch 1, 2, ..., shape (epochs,).
        parts: (first epoch, losses) of each stretch between two interruptions.
        faults: epoch (with a fraction, for the part that was done) -> what happened there.
    """
    look = style.BAND | {"color": style.colour(0), "label": "undisturbed"}
    ax.plot(range(1, len(undisturbed) + 1), undisturbed, **look)
    for number, (first, losses) in enumerate(parts):
        epochs = range(first, first + len(losses))
        look = {"linewidth": 1.2, "marker": style.MARKERS[number]}
        label = f"epochs {first} to {epochs[-1]}"
        ax.plot(epochs, losses, color=style.colour(number + 1), label=label, **look)
    for epoch, what in faults.items():
        ax.axvline(epoch, color=style.RED, linewidth=1.5)
        style.note(
            ax, what, (epoch, 0.4), (-3, 0), ("data", "axes fraction"),
            color=style.RED, rotation=90, ha="right", va="center",
        )  # fmt: skip
    # On white, because a fault's line may be right behind it.
    ax.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none")
