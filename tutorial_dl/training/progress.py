"""What rank 0 shows while it trains: a bar in a terminal, a table in a notebook, else lines.

A file, or the log of a batch job, gets no carriage returns: there it is a line an epoch. The loops
call two methods: `update(samples)` after steps, and `set_postfix(values)` after an epoch, whose row
is then the last one of the history.
"""

import html
import math
import os
import shutil
import sys
import time
from contextlib import suppress
from datetime import timedelta

from tqdm import tqdm

from numba_kernels.jit import compiling

from ..data import Stream
from ..runtime.history import heads, in_words

LINE = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}, {rate_fmt}{postfix}"
# The launcher sets it if its own stderr is a terminal (that of a rank is mpiexec's pipe), and to
# "both" if its stdout is one, too.
TERMINAL = "TUTORIAL_DL_TERMINAL"


class Outlook:
    """What is to be trained, and how far that is.

    Attributes:
        words: What trains.
        epochs: The number of epochs when all is done, those of before included.
        samples: In an epoch; None or 0 for a stream of unknown length.
    """

    def __init__(self, words: str, run, epochs: int):
        self.words, self.run = words, run
        self.before, self.begun = len(run.history.epochs), time.monotonic()
        self.epochs = self.before + epochs
        train = run.dataset.train
        self.samples = train.samples if isinstance(train, Stream) else len(train)

    @property
    def done(self) -> int:
        return len(self.run.history.epochs)

    @property
    def job(self) -> str:
        """What is left of a batch job's time, beside what training needs; "" if that is unknown."""
        ends = os.environ.get("SLURM_JOB_END_TIME", "")  # seconds since 1970
        if not ends.isdigit() or self.done == self.before:
            return ""
        each = (time.monotonic() - self.begun) / (self.done - self.before)
        times = each * (self.epochs - self.done), max(0.0, int(ends) - time.time())
        needs, left = (timedelta(seconds=round(seconds)) for seconds in times)
        return f"; {needs} to go, {left} left of the job"

    @property
    def where(self) -> str:
        """The epoch that is being trained, or was the last."""
        return f"epoch {min(self.done + 1, self.epochs)} of {self.epochs}"


def tell_of_compiling() -> None:
    """Let standard error say, once, that kernels are compiled, if that takes more than a second."""
    from numba_kernels.team import stall  # starts MPI

    words = "compiling kernels, once: later starts load them from the cache"

    def tell() -> None:
        with suppress(ValueError, OSError):  # it is closed
            tqdm.write(words, sys.stderr)  # above a bar that is there

    compiling.after, compiling.tell = stall.REPORT / 10, tell


class Nothing:
    """Shows nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, samples: int) -> None:
        pass

    def set_postfix(self, values: dict[str, str], refresh: bool = True) -> None:
        pass


def progress(words: str, run, epochs: int, shows: bool):
    """A context manager with the methods that the loops call.

    Args:
        words: What trains, such as "synchronous on 4 ranks".
        epochs: To be trained now.
        shows: False: nothing is shown.
    """
    outlook = Outlook(words, run, epochs)
    if not shows:
        return Nothing()
    tell_of_compiling()
    if os.environ.get(TERMINAL) or sys.stderr.isatty():
        return Bar(outlook)
    if in_notebook():
        return NotebookProgress(outlook)
    return EpochLines(outlook)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel, or an engine of one."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class Bar(Nothing):
    """A bar in a terminal, no wider than that: epoch, share of the samples, speed, metrics."""

    def __init__(self, outlook: Outlook):
        self.outlook, self.columns = outlook, shutil.get_terminal_size().columns - 1
        self.bar = tqdm(
            total=outlook.samples and (outlook.epochs - outlook.before) * outlook.samples,
            desc=outlook.where,
            unit=" samples",
            unit_scale=True,
            mininterval=0.5,
            ncols=self.columns,
            bar_format=LINE,
        )
        self.compiled = compiling.spent.seconds

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def update(self, samples: int) -> None:
        if compiling.spent.seconds > self.compiled:  # its speed and the time left are without this
            self.compiled = compiling.spent.seconds
            self.bar.unpause()
        self.bar.update(samples)

    def set_postfix(self, values: dict[str, str], refresh: bool = True) -> None:
        self.bar.set_description_str(self.outlook.where, refresh=False)
        # Without metrics, a line takes about 60 columns.
        room, shown = max(16, self.columns - 63), ""
        for name in sorted(values, key=lambda name: not name.startswith("val_")):
            longer = f"{shown}, {name} {values[name]}".removeprefix(", ")
            if len(longer) <= room:
                shown = longer
        self.bar.set_postfix_str(shown, refresh=refresh)


class EpochLines(Nothing):
    """Prints a line after each epoch."""

    def __init__(self, outlook: Outlook):
        self.outlook = outlook

    def set_postfix(self, values: dict[str, str], refresh: bool = True) -> None:
        row = self.outlook.run.history.last
        metrics = ", ".join(f"{name} {value}" for name, value in values.items())
        print(
            f"{self.outlook.words}, epoch {row['epoch']} of {self.outlook.epochs}: {metrics}; "
            f"{row['samples_per_second']:.0f} samples/s, {row['seconds']:.1f} s{self.outlook.job}",
            file=sys.stderr,
            flush=True,
        )


# In a notebook ---------------------------------------------------------------------------------
#
# The epoch, a curve of the losses, a table of epochs, and what callbacks show, such as the newest
# grid of a GAN's samples (gan_samples.py). It is one display, which is renewed at most once per
# second, also where it comes from an engine of a cluster. The curve is a few lines of SVG, because
# drawing it must not take time from training: matplotlib would need a tenth of a second.
# `history.plot()` draws the figure to keep.

ROWS = 10  # of the table, the newest epochs
WIDTH, HEIGHT = 360, 142  # of the curve
# Both can be seen on white and on black.
COLOURS = {"loss": "#2C8CCB", "val_loss": "#E69F00"}
OF_GAMES = {"generator_loss": "#2C8CCB", "discriminator_loss": "#E69F00"}
NAMES = {
    "loss": "loss in training",
    "val_loss": "loss in validation",
    "generator_loss": "generator's loss",
    "discriminator_loss": "discriminator's loss",
}
SECONDS = 1.0  # from one renewal to the next


class NotebookProgress(Nothing):
    """The display; `show` is IPython's `display`, `now` a clock in seconds."""

    def __init__(self, outlook: Outlook, show=None, now=time.monotonic):
        self.outlook, self.now, self.show = outlook, now, show
        self.samples, self.ended, self.shown = 0, False, -math.inf
        self.begun, self.compiled = now(), compiling.spent.seconds

    def __enter__(self):
        if self.show is None:
            from IPython.display import display

            self.show = display
        self.handle = self.show(self, display_id=True)
        self.shown = self.now()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended = True
        self.handle.update(self)

    def update(self, samples: int) -> None:
        self.samples += samples
        self._renew()

    def set_postfix(self, values: dict[str, str], refresh: bool = True) -> None:
        self._renew()

    def _renew(self) -> None:
        if self.now() - self.shown >= SECONDS:
            self.handle.update(self)
            self.shown = self.now()

    # What is shown

    @property
    def share(self) -> float:
        """The share of all samples that was trained on; 0 for a stream of unknown length."""
        total = (self.outlook.samples or 0) * (self.outlook.epochs - self.outlook.before)
        return min(1.0, self.samples / total) if total else 0.0

    @property
    def status(self) -> str:
        seconds = self.now() - self.begun
        words = f"{self.outlook.words}, {self.outlook.where}"
        if self.ended:
            return f"{words}, {seconds:.1f} s"
        trained = seconds - compiling.spent.seconds + self.compiled
        left = f", about {trained / self.share - trained:.0f} s left" if self.share > 0.02 else ""
        return f"{words}, {seconds:.0f} s{left}"

    def __repr__(self) -> str:
        """The status, and the newest epoch; for what can't show HTML."""
        if not self.outlook.done:
            return self.status
        return f"{self.status}: " + ", ".join(
            f"{name} {text}" for name, text in cells(self.outlook.run.history.last).items()
        )

    def _repr_html_(self) -> str:
        rows = self.outlook.run.history.epochs
        bar = "" if self.ended else f'<progress value="{self.share:.3f}" max="1"></progress> '
        parts = [f"<div>{bar}{html.escape(self.status)}</div>"]
        if len(rows) > 1:
            parts.append(curve(rows))
        if rows:
            parts.append(table(rows))
        parts += [one.shown() for one in self.outlook.run.callbacks]
        return "".join(parts)


def cells(row: dict[str, float]) -> dict[str, str]:
    """Column -> text, without the epoch's seconds, which its speed tells already."""
    short = {"samples_per_second": "samples/s"}
    return {short.get(n, n): in_words(n, row[n]) for n in row if n != "seconds"}


def table(rows: list[dict[str, float]]) -> str:
    """The newest epochs, the last one at the bottom."""
    left = len(rows) - ROWS
    earlier = f"<tr><td>… {left} earlier</td></tr>" if left > 0 else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{text}</td>" for text in cells(row).values()) + "</tr>"
        for row in rows[-ROWS:]
    )
    rows_of_page = f"<tr>{heads(cells(rows[-1]))}</tr>{earlier}{body}"
    return f'<div style="overflow-x: auto"><table>{rows_of_page}</table></div>'


def curve(rows: list[dict[str, float]]) -> str:
    """Losses by epoch as SVG, on a logarithmic scale where all are above 0."""
    colours = COLOURS if "loss" in rows[0] else OF_GAMES
    lines = {name: [row[name] for row in rows if name in row] for name in colours}
    lines = {name: line for name, line in lines.items() if line}
    every = [value for line in lines.values() for value in line]
    if not every:  # other players have other columns
        return ""
    logarithmic = min(every) > 0
    scale = math.log if logarithmic else float
    low, high = scale(min(every)), scale(max(every))
    step, span = (WIDTH - 60) / max(1, len(rows) - 1), high - low or 1.0

    def place(epoch: int, value: float) -> str:
        return f"{50 + step * epoch:.1f},{10 + 90 * (high - scale(value)) / span:.1f}"

    drawn, at = [], 50
    for name, line in lines.items():
        points = " ".join(place(epoch, value) for epoch, value in enumerate(line))
        dashes = ' stroke-dasharray="5 3"' if name in list(colours)[1:] else ""
        look = f'fill="none" stroke="{colours[name]}" stroke-width="2"{dashes}'
        drawn.append(f'<polyline points="{points}" {look}/>')
        drawn.append(f'<line x1="{at}" x2="{at + 20}" y1="132" y2="132" {look}/>')
        drawn.append(_text(at + 25, 136, NAMES[name]))
        at += 150
    drawn += [_text(0, 14, f"{max(every):.3g}"), _text(0, 104, f"{min(every):.3g}")]
    first, last = rows[0]["epoch"], rows[-1]["epoch"]
    drawn += [_text(50, 116, f"epoch {first}"), _text(WIDTH - 10, 116, f"epoch {last}", "end")]
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'style="max-width:100%" font-size="11" fill="currentColor" role="img" '
        f'aria-label="losses by epoch">{"".join(drawn)}</svg>'
    )


def _text(x: int, y: int, words: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'
