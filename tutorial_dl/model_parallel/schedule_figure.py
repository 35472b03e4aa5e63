"""Figure of a schedule: what each rank computes when, one row per rank; gaps are the bubble."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from tutorial_dl import figure_style as style
from tutorial_dl.model_parallel.checking import held
from tutorial_dl.model_parallel.schedules import Schedule
from tutorial_dl.model_parallel.simulating import Timetable, simulate

__all__ = ["draw_schedule"]

# Kinds differ in lightness too; later chunks are hatched.
LOOKS = {"F": style.SKY, "B": style.ORANGE, "W": style.GREEN}
NAMES = {"F": "forward", "B": "gradient of inputs", "W": "gradient of weights"}
MOST = 400  # more actions have no numbers in them


def draw_schedule(
    shown: Schedule | Timetable, title: str | None = None, ax: Axes | None = None
) -> style.Figure:
    """Boxes F, B and W with the number of their micro-batch, and how many each rank holds.

    Args:
        shown: A schedule, drawn with F = B = W = 1 and messages that take no time; or a Timetable,
            predicted by `simulate` or measured by a Pipeline.
        title: The figure's title; by default the name and the bubble.
        ax: Where to draw; a new figure if None.
    """
    table = shown if isinstance(shown, Timetable) else simulate(shown)
    schedule, ranks = table.schedule, len(table.schedule.ranks)
    spans = [span for span in table.spans if not span.action.message]
    numbered = len(spans) <= MOST
    with style.axes(ax, width=9.6, height=max(2.2, 1.3 + 0.42 * ranks)) as ax:
        for span in spans:
            kind, chunk = span.action.kind, span.action.chunk
            box = Rectangle(
                (span.begin, span.rank - 0.4), span.end - span.begin, 0.8, facecolor=LOOKS[kind],
                edgecolor="white", linewidth=0.8, hatch="//" * chunk,
            )  # fmt: skip
            ax.add_patch(box)
            if numbered:
                middle = (span.begin + span.end) / 2
                words = str(span.action.batch)
                ax.text(middle, span.rank, words, ha="center", va="center", fontsize=8)
        for rank, most in enumerate(held(schedule)):
            beside = {"transform": ax.get_yaxis_transform(), "va": "center", "fontsize": 9}
            ax.text(1.01, rank, f"holds {most}", **beside)
        for kind, colour in LOOKS.items():
            ax.add_patch(Rectangle((0, 0), 0, 0, facecolor=colour, label=NAMES[kind]))
        ax.set(
            xlim=(0, table.seconds or 1),
            ylim=(ranks - 0.4, -0.6),
            xlabel="time" if isinstance(shown, Schedule) else "time, s",
            title=title or f"{schedule.name}: bubble {100 * table.bubble:.0f} %",
        )
        ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="y")
        if not ax.figure.legends:
            ax.figure.legend(loc="outside lower left", ncols=3, fontsize=9)
    return ax.figure
