"""`History`: the record of a training run, one row of plain numbers per epoch."""

import html
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(repr=False)
class History:
    """One row per epoch, with columns `epoch`, `loss` (mean over the epoch's samples), `val_...`
    for every metric, `samples_per_second` (of all ranks together, training only), and `seconds` (of
    training only).
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    # For runs with a master: updates by staleness, batches by rank, and a line per lost worker.
    staleness: Counter[int] = field(default_factory=Counter)
    workers: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def column(self, name: str) -> list[float]:
        """One column over the epochs, in order."""
        return [row[name] for row in self.epochs]

    @property
    def last(self) -> dict[str, float]:
        return self.epochs[-1]

    @property
    def seconds(self) -> float:
        """Training time of all epochs, without validation."""
        return sum(self.column("seconds"))

    @property
    def samples_per_second(self) -> float:
        """Median over the epochs; the first, which includes compilation, counts only if alone."""
        rates = sorted(self.column("samples_per_second")[1:] or self.column("samples_per_second"))
        middle = len(rates) // 2
        return rates[middle] if len(rates) % 2 else (rates[middle - 1] + rates[middle]) / 2

    def plot(self, beside: Mapping[str, "History"] | None = None, name: str = "this run"):
        """Draw loss and metrics by epoch, of training (solid) and of validation (dashed).

        There is a panel for the loss, and one for each metric.

        Args:
            beside: Other histories to compare with, by name: {"1 rank": alone}.
            name: What the legend calls this history, if there are others.

        Returns:
            A matplotlib Figure; `.savefig("curves.png")` keeps it.

        Raises:
            ValueError: If a history has no epochs.
        """
        from .history_figure import curves

        return curves({name: self} | dict(beside or {}))

    def __repr__(self) -> str:
        if not self.epochs:
            return "History(no epochs)"
        values = ", ".join(
            f"{name} {self.last[name]:.4g}"
            for name in self.last
            if name not in ("epoch", "seconds", "samples_per_second")
        )
        return f"History({len(self.epochs)} epochs; the last: {values})"

    def _repr_html_(self) -> str:
        names = list(self.epochs[0]) if self.epochs else []
        rows = "".join(
            "<tr>" + "".join(f"<td>{in_words(name, row[name])}</td>" for name in names) + "</tr>"
            for row in self.epochs
        )
        return f"<table><tr>{heads(names)}</tr>{rows}</table>"


def heads(names: Iterable[str]) -> str:
    """The columns' names in HTML, small and able to break, so that many fit."""
    broken = (html.escape(name).replace("_", "_<wbr>") for name in names)
    return "".join(f'<th style="font-size:85%">{name}</th>' for name in broken)


def in_words(column: str, value: float) -> str:
    """A value of a history's row as a table shows it: 214,000 samples per second, not 2.14e+05."""
    if column == "samples_per_second":
        return f"{value:,.0f}"
    return f"{value:.0f}" if column == "epoch" else f"{value:.4g}"
