"""What rank 0 shows while it trains: a bar in a terminal, a table in a notebook, else lines.

A file, or the log of a batch job, gets no carriage returns: there it is a line an epoch. The loops
call two methods: `update(samples)` after steps, and `set_postfix(values)` after an epoch, whose row
is then the last one of the history. notebook_progress.py has the table of a notebook.
"""

import os
import shutil
import sys

from tqdm import tqdm

from ..data import Stream

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
        self.before = len(run.history.epochs)
        self.epochs = self.before + epochs
        train = run.dataset.train
        self.samples = train.samples if isinstance(train, Stream) else len(train)

    @property
    def done(self) -> int:
        return len(self.run.history.epochs)

    @property
    def where(self) -> str:
        """The epoch that is being trained, or was the last."""
        return f"epoch {min(self.done + 1, self.epochs)} of {self.epochs}"


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
    if os.environ.get(TERMINAL) or sys.stderr.isatty():
        return Bar(outlook)
    if in_notebook():
        from .notebook_progress import NotebookProgress

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

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def update(self, samples: int) -> None:
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
            f"{row['samples_per_second']:.0f} samples/s, {row['seconds']:.1f} s",
            file=sys.stderr,
            flush=True,
        )
