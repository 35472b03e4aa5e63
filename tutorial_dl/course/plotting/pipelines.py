"""Figures of pipelines: schedules one above the other, one that goes wrong, and bubbles."""

from collections.abc import Mapping

from tutorial_dl import figure_style as style
from tutorial_dl.model_parallel.checking import as_far_as_it_runs
from tutorial_dl.model_parallel.schedule_figure import draw_schedule
from tutorial_dl.model_parallel.schedules import Schedule, ScheduleError
from tutorial_dl.model_parallel.simulating import Timetable, simulate


def compared_schedules(shown: Mapping[str, Schedule | Timetable]) -> style.Figure:
    """Schedules one above the other, on the same scale of time.

    Args:
        shown: Title -> what `draw_schedule` takes; the titles also give the bubble.
    """
    tables = {
        title: one if isinstance(one, Timetable) else simulate(one) for title, one in shown.items()
    }
    ranks = max(len(table.schedule.ranks) for table in tables.values())
    longest = max(table.seconds for table in tables.values())
    height = max(1.5, 0.9 + 0.34 * ranks)
    with style.panels(len(shown), 1, 9.6, height, sharex=True) as (figure, panels):
        for ax, (title, table) in zip(panels[:, 0], tables.items(), strict=True):
            draw_schedule(shown[title], f"{title}: bubble {100 * table.bubble:.0f} %", ax)
            ax.set_xlim(0, longest)
        for ax in panels[:-1, 0]:
            ax.set_xlabel("")
    return figure


def schedule_so_far(schedule: Schedule, error: ScheduleError | None = None) -> style.Figure:
    """Any schedule, up to where it stops: the first wrong action in red, waits without end in grey.

    Args:
        schedule: With its messages. It is drawn with F = B = W = 1.
        error: What `check` raised for it; None if it is right.
    """
    runs = as_far_as_it_runs(schedule)
    table = simulate(runs)
    title = f"as far as it runs: {error.why.split(':')[0]}" if error else None
    if error and error.place:
        title = f"as far as it runs: rank {error.place[0]} goes wrong"
    whole = f"{table.seconds:g} units of time, bubble {100 * table.bubble:.0f} %"
    figure = draw_schedule(table, title or whole)
    ax, last = figure.axes[0], table.seconds
    ax.set(xlabel="time")
    if not error:
        return figure
    for rank, actions in enumerate(schedule.ranks):
        left = [one for one in actions[len(runs.ranks[rank]) :] if not one.message]
        here = error.place is not None and error.place[0] == rank
        if not left and not here:
            continue
        begin = max((span.end for span in table.spans if span.rank == rank), default=0.0)
        words = f"{left[0] if left else '?'}{'' if here else ' waits'}"
        colour, width = (style.RED, 1) if here else (style.GREY, 2)
        look = {"facecolor": "none", "edgecolor": colour, "linewidth": 2}
        look["linestyle"] = "-" if here else "--"
        letters = {"size": 8, "color": colour, "weight": "bold"}
        style.cell(ax, (begin + 0.06, rank - 0.4), (width, 0.8), words, letters, **look)
        last = max(last, begin + width + 0.2)
    ax.set_xlim(0, last)
    return figure
