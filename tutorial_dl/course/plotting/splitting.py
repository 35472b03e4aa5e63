"""Figures of one layer on several ranks: matrices cut by columns and rows, and what travels."""

from matplotlib.axes import Axes

from tutorial_dl import figure_style as style

WHOLE = "#DDDDDD"  # on all ranks alike
SAMPLES, INPUTS, HIDDEN, OUTPUTS = 1.2, 2.2, 2.4, 1.8  # lengths of the sides of matrices


class Row:
    """Draws an equation of matrices from left to right."""

    def __init__(self, ax: Axes, ranks: int) -> None:
        self.ax, self.x, self.y, self.ranks = ax, 0.0, 0.0, ranks

    def sign(self, words: str, room: float = 0.5) -> None:
        style.middle(self.ax, self.x + room / 2, self.y, words, size=13)
        self.x += room

    def matrix(self, name: str, rows: float, columns: float, cut: str = "", term: int = -1) -> None:
        """A matrix; `cut` by "columns" or "rows", or of the colour of rank `term`, else grey."""
        n = self.ranks if cut else 1
        size = (columns / n, rows) if cut == "columns" else (columns, rows / n)
        letters = {"color": "white", "size": 9, "weight": "bold"}
        for rank in range(n) if cut else [term]:
            right, down = {"columns": (rank, 0), "rows": (0, rank)}.get(cut, (0, 0))
            corner = self.x + right * size[0], self.y + rows / 2 - (down + 1) * size[1]
            words, colour = f"{name}{'₀₁₂₃₄₅₆₇'[rank]}", style.colour(rank)
            if rank < 0:
                words, colour, letters = name, WHOLE, {"size": 10}
            style.cell(self.ax, corner, size, words, letters, facecolor=colour, edgecolor="white")
        self.x += columns

    def terms(self, name: str, rows: float, columns: float) -> None:
        """One matrix per rank, with plus signs between, and their sum."""
        for rank in range(self.ranks):
            if rank:
                self.sign("+", 0.4)
            self.matrix(name, rows, columns, term=rank)


def check_ranks(ranks: int, most: int) -> None:
    if not 2 <= ranks <= most:
        raise ValueError(f"ranks must be from 2 to {most}, got {ranks}")


def of_ranks(ranks: int) -> dict[str, dict]:
    """The looks of a legend with the colour of each rank."""
    return {f"rank {rank}": {"facecolor": style.colour(rank)} for rank in range(ranks)}


def cut_products(ranks: int = 3) -> style.Figure:
    """A product x W cut by columns, cut by rows, and one of each, one after the other.

    Args:
        ranks: From 2 to 4. Each has a colour; what is grey is on all of them.
    """
    check_ranks(ranks, 4)
    summed = ["=", ("terms", "y", SAMPLES, OUTPUTS), "=", ("y", SAMPLES, OUTPUTS)]
    rows = {
        "By columns: every rank needs all inputs, and computes some outputs": [
            ("x", SAMPLES, INPUTS), "·", ("W", INPUTS, HIDDEN, "columns"),
            "=", ("y", SAMPLES, HIDDEN, "columns"),
        ],
        "By rows: every rank needs some inputs, and computes a term of a sum": [
            ("x", SAMPLES, INPUTS, "columns"), "·", ("W", INPUTS, OUTPUTS, "rows"), *summed,
        ],
        "By columns, then by rows: only the sum at the end needs the others": [
            ("x", SAMPLES, INPUTS), "→", ("h", SAMPLES, HIDDEN, "columns"),
            "·", ("B", HIDDEN, OUTPUTS, "rows"), *summed,
        ],
    }  # fmt: skip
    with style.panels(3, 1, width=9.6, height=1.9) as (figure, panels):
        for ax, (title, equation) in zip(panels[:, 0], rows.items(), strict=True):
            ax.set_title(title, weight="normal", size=10)
            ax.set_axis_off()
            row = Row(ax, ranks)
            for part in equation:
                if isinstance(part, str):
                    row.sign(part, 0.4 if part == "·" else 0.5)
                elif part[0] == "terms":
                    row.terms(*part[1:])
                else:
                    row.matrix(*part)
        for ax in panels[:, 0]:
            ax.set(xlim=(0, row.x), ylim=(-1.2, 1.2))
        style.patch_legend(figure, of_ranks(ranks) | {"all ranks": {"facecolor": WHOLE}})
    return figure
