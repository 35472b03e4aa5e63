"""What `python -m tutorial_dl run` shows: a table, and a report in one self-contained HTML file."""

import html
import io
import platform
import sys
from pathlib import Path

from numba_kernels import launch

from .. import __version__
from ..course import plotting
from ..training.strips import strip_of
from ..words import counted
from .outcome import IN_STEP

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

TRAINED_ON = 1437  # digits in the training set

# What the report says below its figures.
FASTER = (
    "Speed-up over the serial run, in samples per second. The prediction uses the times of a "
    "gradient on a half and a quarter of the batch, measured in the serial run, and the bytes that "
    "the reduction moves; waiting for the slowest rank is not in it."
)
ALIKE = "Synchronous ranks make the updates of one process, so each model's curves should coincide."
ASYNCHRONOUS = (
    "Asynchronous strategies beside the synchronous one, on the dense network, each with the "
    "learning rate that did best on these digits (docs/asynchronous.md). Time is that of training; "
    "compiling came before. The grey line is where the quickest run ended: for equal time, compare "
    "there."
)

DRAWN = (
    "What a GAN draws that learns the same digits, by epoch: one column per class asked for, each "
    "image from the same noise in every epoch."
)

STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --faint: #666; --line: #ddd;
        --said: #f3f6f9 }
@media (prefers-color-scheme: dark) {
  :root { --text: #ddd; --page: #16181c; --faint: #aaa; --line: #3a3e45; --said: #20242b }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem;
       color: var(--text); background: var(--page) }
h1 { line-height: 1.2 }
.said { background: var(--said); padding: .75rem 1rem .75rem 2rem; border-radius: .5rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
         white-space: nowrap }
th:nth-child(1), td:nth-child(1), th:nth-child(3), td:nth-child(3) { text-align: left }
figure { margin: 2rem auto; max-width: 44rem }
svg { width: 100%; height: auto; box-sizing: border-box; background: #fff; border-radius: .5rem;
      padding: .5rem }
figcaption { color: var(--faint) }
"""


def cells(row: dict) -> list[str]:
    """The texts of a row, as the table and the report show them."""
    return ["–" if row[n] is None else form.format(row[n]) for n, (_, form) in COLUMNS.items()]


def table(rows: list[dict]) -> None:
    """Print the rows as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # A pipe has no width; rich would then cut the table to 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 100)
    title = "Validation on 360 of 1,797 digits; one thread per rank"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    names = list(COLUMNS)[: -1 if console.width < 90 else None]  # no prediction: in the report
    for name in names:
        head, _ = COLUMNS[name]
        words = name in ("model", "strategy")
        shown.add_column(head, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*cells(row)[: len(names)])
    console.print(shown)


def write(path: Path, rows: list[dict], results: list[dict], said: list[str], gan: dict) -> None:
    """Write the report: rows of `compare`, results of `train --json`, sentences of `outcome`.

    gan: The result of the GAN's run, with its grids of samples.
    """
    cores = launch.usable_cores()
    in_step = [row for row in rows if row["strategy"] in IN_STEP]
    histories = [r for r in results if r["strategy"] in IN_STEP]
    figures = [
        (plotting.speed_up(in_step, cores), FASTER),
        (plotting.histories(histories, columns=1), ALIKE),
    ]
    others = {
        f"{r['strategy'].replace('_', ' ')}, {counted(r['ranks'], 'rank')}": r["history"]
        for r in results
        if r["model"] == "dense" and (r["strategy"] not in IN_STEP or r["ranks"] == 2)
    }
    if len(others) > 1:
        on_terms = plotting.on_equal_terms(others, TRAINED_ON, columns=1)
        figures.append((on_terms, ASYNCHRONOUS))
    head = "".join(f"<th>{html.escape(name)}</th>" for name, _ in COLUMNS.values())
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells(row)) + "</tr>" for row in rows
    )
    pictures = "".join(
        f"<figure>{svg(figure)}<figcaption>{html.escape(text)}</figcaption></figure>"
        for figure, text in figures
    )
    grids = [(one["epoch"], one["png"]) for one in gan["samples"]]
    pictures += f"<figure>{strip_of(grids)}<figcaption>{html.escape(DRAWN)}</figcaption></figure>"
    sentences = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in said)
    path.write_text(
        f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Training on digits, compared</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{STYLE}</style></head><body>
<h1>Training on digits, by strategy and ranks</h1>
<ul class="said">{sentences}</ul>
<p>Scikit-learn's 1,797 handwritten digits; loss and accuracy are measured on the 360 validation
digits. One thread per rank, {counted(cores, "core")}, Python {platform.python_version()},
tutorial-dl {__version__}.</p>
<div class="wide"><table><tr>{head}</tr>{body}</table></div>
{pictures}
</body></html>
""",
        encoding="utf-8",
    )


def svg(figure) -> str:
    """The figure as an <svg> element, for use in a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
