"""The table that `run` prints and that report.html shows."""

from __future__ import annotations

import sys

IN_STEP = ("serial", "synchronous")  # all ranks make the updates that one process makes

COLUMNS = {
    "model": ("model", "{}"),
    "ranks": ("ranks", "{}"),
    "strategy": ("strategy", "{}"),
    "val_loss": ("loss", "{:.4f}"),
    "val_accuracy": ("accuracy", "{:.4f}"),
    "samples_per_second": ("samples/s", "{:,.0f}"),
    "speed_up": ("speed-up", "{:.2f}"),
    "predicted": ("predicted", "{:.2f}"),
}


def cells(row: dict) -> list[str]:
    """The texts of a row, as the table and the report show them."""
    return ["–" if row[n] is None else form.format(row[n]) for n, (_, form) in COLUMNS.items()]


def table(rows: list[dict]) -> None:
    """Print the rows as a table."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(
        title="Validation on 360 of 1,797 digits; one thread per rank", title_justify="left"
    )
    for name, (head, _) in COLUMNS.items():
        words = name in ("model", "strategy")
        shown.add_column(head, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*cells(row))
    # A pipe has no width; rich would then cut the table to 80 columns.
    Console(width=None if sys.stdout.isatty() else 100).print(shown)
