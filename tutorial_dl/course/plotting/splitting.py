"""Figures of one layer on several ranks: matrices cut by columns and rows, and what travels."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from tutorial_dl import figure_style as style
from tutorial_dl.figure_style import Lines, Numbers

WHOLE = "#DDDDDD"  # on all ranks alike
SAMPLES, INPUTS, HIDDEN, OUTPUTS = 1.2, 2.2, 2.4, 1.8  # lengths of the sides of matrices


class Row:
    """Draws an equation of matrices from left to right."""

    def __init__(self, ax: Axes, y: float, ranks: int) -> None:
        self.ax, self.x, self.y, self.ranks = ax, 0.0, y, ranks

    def sign(self, words: str, room: float = 0.5) -> None:
        self.ax.text(self.x + room / 2, self.y, words, ha="center", va="center", size=13)
        self.x += room

    def matrix(self, name: str, rows: float, columns: float, cut: str = "", term: int = -1) -> None:
        """A matrix; `cut` by "columns" or "rows", or of the colour of rank `term`, else grey."""
        low, n = self.y - rows / 2, self.ranks if cut else 1
        for part in range(n):
            wide, high = (columns / n, rows) if cut == "columns" else (columns, rows / n)
            place = {
                "columns": (self.x + part * wide, low),
                "rows": (self.x, low + rows - (part + 1) * high),
            }.get(cut, (self.x, low))
            colour = style.colour(part if cut else term) if cut or term >= 0 else WHOLE
            self.ax.add_patch(Rectangle(place, wide, high, facecolor=colour, edgecolor="white"))
            if cut or term >= 0:
                words = f"{name}{'₀₁₂₃₄₅₆₇'[part if cut else term]}"
                middle = place[0] + wide / 2, place[1] + high / 2
                self.ax.text(
                    *middle, words, ha="center", va="center", color="white", size=9, weight="bold"
                )
        if not cut and term < 0:
            self.ax.text(self.x + columns / 2, self.y, name, ha="center", va="center", size=10)
        self.x += columns

    def terms(self, name: str, rows: float, columns: float) -> None:
        """One matrix per rank, with plus signs between, and their sum."""
        for rank in range(self.ranks):
            if rank:
                self.sign("+", 0.4)
            self.matrix(name, rows, columns, term=rank)


def cut_products(ranks: int = 3) -> style.Figure:
    """A product x W cut by columns, cut by rows, and one of each, one after the other.

    Args:
        ranks: From 2 to 4. Each has a colour; what is grey is on all of them.
    """
    if not 2 <= ranks <= 4:
        raise ValueError(f"ranks must be from 2 to 4, got {ranks}")
    with style.panels(3, 1, width=9.6, height=1.9) as (figure, panels):
        titles = (
            "By columns: every rank needs all inputs, and computes some outputs",
            "By rows: every rank needs some inputs, and computes a term of a sum",
            "By columns, then by rows: only the sum at the end needs the others",
        )
        for ax, title in zip(panels[:, 0], titles, strict=True):
            ax.set_title(title, weight="normal", size=10)
            ax.set_axis_off()
        row = Row(panels[0, 0], 0, ranks)
        row.matrix("x", SAMPLES, INPUTS)
        row.sign("·", 0.4)
        row.matrix("W", INPUTS, HIDDEN, "columns")
        row.sign("=")
        row.matrix("y", SAMPLES, HIDDEN, "columns")
        row = Row(panels[1, 0], 0, ranks)
        row.matrix("x", SAMPLES, INPUTS, "columns")
        row.sign("·", 0.4)
        row.matrix("W", INPUTS, OUTPUTS, "rows")
        row.sign("=")
        row.terms("y", SAMPLES, OUTPUTS)
        row.sign("=")
        row.matrix("y", SAMPLES, OUTPUTS)
        row = Row(panels[2, 0], 0, ranks)
        row.matrix("x", SAMPLES, INPUTS)
        row.sign("→")
        row.matrix("h", SAMPLES, HIDDEN, "columns")
        row.sign("·", 0.4)
        row.matrix("B", HIDDEN, OUTPUTS, "rows")
        row.sign("=")
        row.terms("y", SAMPLES, OUTPUTS)
        row.sign("=")
        row.matrix("y", SAMPLES, OUTPUTS)
        for ax in panels[:, 0]:
            ax.set(xlim=(0, row.x), ylim=(-1.2, 1.2))
        looks = {f"rank {rank}": {"facecolor": style.colour(rank)} for rank in range(ranks)}
        style.patch_legend(figure, looks | {"all ranks": {"facecolor": WHOLE}})
    return figure


@style.one_panel(
    "What the ranks reduce in one step", "samples per batch", "bytes (lines: predicted)"
)
def travelled(ax, samples: Numbers, predicted: Lines, measured: Mapping[str, Numbers]):
    """Bytes that ranks give to allreduces in a step, by the size of the batch.

    Args:
        samples: (k,).
        predicted, measured: Name -> bytes, (k,).
    """
    style.predicted_measured_each(ax, samples, predicted, measured)
    style.log_x(ax, samples)
    ax.set_yscale("log", base=2)
    low, high = ax.get_ylim()
    ticks = [2**k for k in range(0, 40, 2) if low <= 2**k <= high]
    ax.set_yticks(ticks, [f"{n // 1024} KiB" if n >= 1024 else f"{n} B" for n in ticks])
