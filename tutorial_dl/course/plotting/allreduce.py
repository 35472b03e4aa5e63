"""Figures of allreduce: which rank sends what to which rank and when, and how long that takes."""

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

from numba_kernels.allreduce.schedules import Message, rounds
from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Lines, Numbers

LOOKS = {
    "naive": {"color": style.ORANGE, "linestyle": "--", "marker": "s"},
    "tree": {"color": style.GREEN, "linestyle": "-.", "marker": "^"},
    "ring": {"color": style.BLUE, "linestyle": "-", "marker": "o"},
    "recursive_doubling": {"color": style.SKY, "linestyle": (0, (5, 1)), "marker": "v"},
    "rabenseifner": {"color": style.RED, "linestyle": (0, (3, 1, 1, 1)), "marker": "P"},
    "mpi": {"color": style.GREY, "linestyle": (0, (1, 1)), "marker": "X"},
    "staged": {"color": style.BLACK, "linestyle": (0, (4, 2)), "marker": "*"},
    "shared_memory": {"color": style.PINK, "linestyle": ":", "marker": "D"},
}


def timetable(ranks: int = 4) -> style.Figure:
    """All messages of naive, tree and ring as arrows from rank to rank, with time running down.

    In the upper row every message takes equally long (a short vector: latency); in the lower row
    it takes a time proportional to its bytes (a long vector).
    """
    if ranks < 2:
        raise ValueError(f"ranks must be at least 2 to have messages, got {ranks}")
    plans = {name: rounds(name, ranks) for name in ("naive", "tree", "ring")}
    size = {"width": 3.1, "height": 3.0}
    with style.panels(2, len(plans), **size, sharex=True, sharey="row") as (figure, grid):
        for (name, plan), (short, long) in zip(plans.items(), grid.T, strict=True):
            around = name == "ring"
            _arrows(short, plan, [1.0] * len(plan), ranks, around)
            _arrows(long, plan, [messages[0].fraction for messages in plan], ranks, around)
            short.set_title(f"{name}: {len(plan)} latencies")
            sent = sum(messages[0].fraction for messages in plan)
            long.set_title(f"{name}: {sent:g} vectors")
            long.set_xticks(range(ranks), [f"rank {r}" for r in range(ranks)])
        labels = ("short vector:\ntime in\nlatencies", "long vector:\ntime in\nvectors")
        for ax, label in zip(grid[:, 0], labels, strict=True):
            ax.set_ylabel(label)
            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
            ax.invert_yaxis()
        for adds, label in ((True, "added on arrival"), (False, "copied on arrival")):
            grid[0, 0].plot([], [], label=label, **_look(adds))
        style.legend_below(grid[0, 0])
    return figure


def _look(adds: bool) -> dict:
    return {"color": style.BLUE if adds else style.RED, "linestyle": "-" if adds else "--"}


def _arrows(
    ax: Axes, plan: list[list[Message]], durations: list[float], ranks: int, around: bool
) -> None:
    """Draw messages as arrows; `around`: from the last rank to the first past the right edge."""
    ends = np.cumsum(durations)
    for rank in range(ranks):
        ax.plot([rank, rank], [0, ends[-1]], color=style.GREY, linewidth=1)
    for messages, end, duration in zip(plan, ends, durations, strict=True):
        for message in messages:
            at, to = message.source, message.target
            tips = [(at, to, end - duration, end)]
            if around and abs(to - at) > 1:  # rank p-1 to rank 0
                middle = end - duration / 2
                tips = [(at, at + 0.5, end - duration, middle), (to - 0.5, to, middle, end)]
            for i, (x, x_end, y, y_end) in enumerate(tips):
                last = i == len(tips) - 1
                look = {"arrowstyle": "-|>" if last else "-", "mutation_scale": 10}
                look |= {"shrinkA": 0, "shrinkB": 0, "linewidth": 1.3, **_look(message.adds)}
                ax.annotate("", (x_end, y_end), (x, y), arrowprops=look)
    ax.axhline(ends[-1], color=style.BLACK, linewidth=1)
    ax.set_xlim(-0.6, ranks - 0.4)
    ax.grid(False, axis="x")


# The ring, chunk by chunk ----------------------------------------------------------------------


def ring_strip(ranks: int = 4) -> style.Figure:
    """Which ranks' values every rank holds in every chunk, before and after each ring step."""
    states = _states(ranks)
    plan = rounds("ring", ranks)
    with style.panels(2, ranks, 0.5 * ranks + 0.3, 0.46 * ranks + 0.6) as (figure, grid):
        places = [*grid[0], *grid[1, 1:]]
        for step, (ax, state) in enumerate(zip(places, states, strict=True)):
            kind = "add" if step < ranks else "copy"
            _table(ax, state, f"{kind}, step {step}" if step else "before")
            for message in plan[step - 1] if step else ():
                _box(ax, message.target, message.first, fill=False, edgecolor="black", linewidth=2)
        grid[1, 0].set_axis_off()
        grid[1, 0].text(
            0.0, 0.5, "A column is a rank,\na row a chunk.\n\nOne digit per rank:\n"
            "0110 is the sum of\nranks 1 and 2.\n\nFramed: just arrived\nfrom the left.",
            transform=grid[1, 0].transAxes, va="center", size=9,
        )  # fmt: skip
    return figure


def ring_film(ranks: int = 4, between: int = 4) -> style.Film:
    """The chunks travelling round the ring, in `between` frames per step of the allreduce."""
    states, plan = _states(ranks), rounds("ring", ranks)
    with style.axes(width=1.1 * ranks + 0.6, height=0.75 * ranks + 0.9) as ax:
        pass

    def frames() -> Iterator[None]:
        with style.axes(ax):
            _table(ax, states[0], "Every rank has its own vector, cut into chunks")
            yield
            yield
            for step, messages in enumerate(plan):
                words = "added on arrival" if messages[0].adds else "copied on arrival"
                title = f"Step {step + 1} of {len(plan)}: sent to the right, {words}"
                for moment in range(1, between + 1):
                    arrived = moment == between
                    _table(ax, states[step + arrived], title)
                    for message in messages:
                        box = {"fill": False, "edgecolor": "black", "linewidth": 2, "zorder": 6}
                        if arrived:
                            _box(ax, message.target, message.first, **box)
                            continue
                        at = message.source + moment / between
                        held = states[step][message.source, message.first]
                        for x in (at, at - ranks):  # out at the right, in at the left
                            _tile(ax, x, message.first, held, zorder=4)
                            _box(ax, x, message.first, **box)
                    yield
                yield
            _table(ax, states[-1], "Every rank has the whole sum")
            yield

    return style.Film(ax.figure, frames(), milliseconds=350, hold=3000)


def _states(ranks: int) -> list[np.ndarray]:
    """Which ranks' values are in each chunk on each rank, before and after every ring step.

    2(ranks - 1) + 1 arrays of bool, shape (rank, chunk, rank whose values are in it).
    """
    if ranks < 2:
        raise ValueError(f"ranks must be at least 2 for a ring, got {ranks}")
    state = np.broadcast_to(np.eye(ranks, dtype=bool)[:, None, :], (ranks,) * 3).copy()
    states = [state]
    for messages in rounds("ring", ranks):
        before, state = state, state.copy()
        for message in messages:  # what is copied is complete, so adding is right for both
            state[message.target, message.first] |= before[message.source, message.first]
        states.append(state)
    return states


def _table(ax: Axes, state: np.ndarray, title: str) -> None:
    """Draw ranks as columns and chunks as rows."""
    ranks = len(state)
    ax.clear()
    for rank in range(ranks):
        for chunk in range(ranks):
            _tile(ax, rank, chunk, state[rank, chunk])
    ax.set(xlim=(-0.5, ranks - 0.5), ylim=(ranks - 0.5, -0.5))
    ax.set_title(title, fontsize=10)
    ax.set_xticks(range(ranks), [f"rank {r}" for r in range(ranks)], size=8)
    ax.set_yticks(range(ranks), [f"{chunk}" for chunk in range(ranks)], size=8)
    ax.set_ylabel("chunk", size=8)
    style.bare(ax)


def _tile(ax: Axes, x: float, y: float, whose: np.ndarray, zorder: float = 1) -> None:
    """Draw a chunk: a stripe and a digit for every rank whose values are in it."""
    ranks = len(whose)
    width = 0.88 / ranks
    _box(ax, x, y, facecolor="white", edgecolor="#DDDDDD", zorder=zorder)
    for rank, there in enumerate(whose):
        left = x - 0.44 + width * (ranks - 1 - rank)  # rank 0 is the last digit
        digit = {"size": 8, "color": style.GREY, "zorder": zorder + 0.5, "clip_on": True}
        if there:
            digit |= {"weight": "bold", "color": "black"}
            look = {"facecolor": style.colour(rank), "alpha": 0.45, "linewidth": 0}
            style.cell(ax, (left, y - 0.4), (width, 0.8), zorder=zorder, **look)
        style.middle(ax, left + width / 2, y, "1" if there else "0", **digit)


def _box(ax: Axes, x: float, y: float, **look) -> None:
    style.cell(ax, (x - 0.44, y - 0.4), (0.88, 0.8), **look)


# Times -----------------------------------------------------------------------------------------


@style.one_panel("Allreduce: predicted beside measured", ylabel="time", legend=None)
def allreduce_times(
    ax, x: Numbers, predicted: Lines, measured: Mapping[str, np.ndarray] | None = None,
    bound: tuple[str, Numbers] | None = None, over: str = "bytes",
):  # fmt: skip
    """Time of an allreduce by each algorithm, predicted as lines, measured as markers, log-log.

    Args:
        x: bytes or ranks, as `over` says, shape (k,).
        predicted: algorithm -> seconds, shape (k,).
        measured: algorithm -> seconds, shape (k, repeats): the median is marked, and a bar goes
            down to the fastest.
        bound: (legend entry, seconds of shape (k,)) of one more line.
        over: "bytes" (of the vector) or "ranks".
    """
    if over not in ("bytes", "ranks"):
        raise ValueError(f'over must be "bytes" or "ranks", got {over!r}')
    x, measured = np.asarray(x, float), measured or {}
    for name, seconds in predicted.items():
        ax.plot(x, _fits(x, seconds, name), **_of(name) | {"marker": "none"})
    if bound:
        label, seconds = bound[0], _fits(x, bound[1], bound[0])
        lowest = min(np.min(each) for each in (*predicted.values(), *measured.values()))
        seconds = np.where(seconds >= lowest, seconds, np.nan)  # not below all others
        ax.plot(x, seconds, color=style.BLACK, linewidth=1, label=label)
    for name, seconds in measured.items():
        seconds = _fits(x, seconds, name)  # (k, repeats)
        median, fastest = np.median(seconds, axis=1), seconds.min(axis=1)
        bars = np.stack([median - fastest, np.zeros(len(x))])
        ax.errorbar(x, median, bars, elinewidth=1, **_of(name) | {"linestyle": "none"})
    for name in dict.fromkeys([*predicted, *measured]):  # one entry per algorithm
        ax.plot([], [], label=name, **_of(name, name in predicted, name in measured))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_formatter(_prefixed if over == "bytes" else "{x:g}")
    ax.yaxis.set_major_formatter(EngFormatter("s"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("vector (bytes)" if over == "bytes" else "ranks")
    ax.legend(fontsize=9, title=_how(measured), title_fontsize=9, alignment="left")


def allreduce_ladder(
    sizes: Numbers, predicted: Lines, measured: Mapping[str, np.ndarray],
    crossover: tuple[str, str, float] | None = None,
) -> style.Figure:  # fmt: skip
    """One panel per algorithm: time predicted (line) and measured (markers), others in grey.

    Args:
        sizes: bytes of the vector, shape (k,).
        predicted: algorithm -> seconds, shape (k,).
        measured: as for `allreduce_times`. The title gives the median of their relative distances
            from the line.
        crossover: two algorithms, and the bytes above which the second is predicted to be faster:
            a line in both.
    """
    if not predicted or predicted.keys() != measured.keys():
        raise ValueError("predicted and measured must have the same algorithms, one or more; got "
                         f"{', '.join(predicted)} and {', '.join(measured)}")  # fmt: skip
    sizes = np.asarray(sizes, float)
    shared = {"sharex": True, "sharey": True}
    with style.panel_each(predicted, 4, 2.6, 2.5, **shared) as (figure, panels):
        for name, ax in panels.items():
            for other in predicted.values():
                ax.plot(sizes, _fits(sizes, other, name), color=style.GREY, linewidth=0.6)
            allreduce_times(sizes, {name: predicted[name]}, {name: measured[name]}, ax=ax)
            ax.get_legend().remove()
            off = np.abs(np.median(measured[name], axis=1) / predicted[name] - 1)
            ax.set_title(f"{name}\noff by {np.median(off):.0%}", fontsize=9)
            ax.tick_params(labelsize=8)
            ax.set(xlabel="", ylabel="")
            ax.xaxis.set_major_locator(LogLocator(base=16))
            if crossover and name in crossover[:2]:
                ax.axvline(crossover[2], color=style.BLACK, linewidth=1, linestyle=":")
                # Below the panel, where they hide no data.
                first = name == crossover[0]
                words = ("left", crossover[1]) if first else ("right", crossover[0])
                ax.set_xlabel("{} of the dotted line\nfaster than {}".format(*words), size=8)
        figure.supxlabel("vector (bytes)", size=9)
        figure.supylabel("time", size=9)
        handles = [
            Line2D([], [], color=style.BLACK, label="predicted"),
            Line2D([], [], color=style.BLACK, linestyle="none", marker="o", label="measured"),
            Line2D([], [], color=style.GREY, linewidth=0.6, label="the others, predicted"),
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=9)
    return figure


def side_by_side(*panels: Mapping, sharey: bool = True) -> style.Figure:
    """Panels of `allreduce_times` in a row, each given as a mapping of its arguments."""
    if not panels:
        raise ValueError("at least one panel is needed, got none")
    with style.panels(1, len(panels), width=4.9, height=4.2, sharey=sharey) as (figure, grid):
        entries = {}
        for ax, arguments in zip(grid[0], panels, strict=True):
            allreduce_times(**arguments, ax=ax)
            ax.get_legend().remove()  # one legend for all panels, below them
            if sharey and ax is not grid[0][0]:
                ax.set_ylabel("")
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
                entries[label] = handle
        figure.legend(
            entries.values(), entries, loc="outside lower center", ncols=len(entries),
            title=_how(any(arguments.get("measured") for arguments in panels)),
        )  # fmt: skip
    return figure


def _how(measured) -> str:
    return "line: predicted, marker: measured" if measured else "predicted"


def _of(name: str, line: bool = True, marker: bool = True) -> dict:
    if name not in LOOKS:
        raise ValueError(f"unknown algorithm {name!r}; choose one of {', '.join(LOOKS)}")
    hidden = {"linestyle": "none"} if not line else {"marker": "none"} if not marker else {}
    return LOOKS[name] | hidden


def _fits(x: np.ndarray, seconds: np.ndarray, name: str) -> np.ndarray:
    seconds = np.asarray(seconds, float)
    if len(seconds) != len(x):
        raise ValueError(f"{name} must have {len(x)} times, one per size, got {len(seconds)}")
    return seconds


def _prefixed(n: float, position: int | None = None) -> str:
    for prefix, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if n >= size:
            return f"{n / size:g} {prefix}"
    return f"{n:g}"
