"""What rank 0 shows while it trains: a bar in a terminal or notebook, else a line an epoch.

A file, or the log of a batch job, gets no carriage returns.
"""

import os
import sys

from tqdm import tqdm

from ..data import Stream

# The launcher sets it to 1 if its own stderr is a terminal: that of a rank is mpiexec's pipe.
TERMINAL = "TUTORIAL_DL_TERMINAL"


def progress(words: str, run, epochs: int, shows: bool):
    """A context manager with the methods of tqdm that the loops call.

    Args:
        words: What trains, such as "synchronous on 4 ranks".
        epochs: To be trained now.
        shows: False: nothing is shown.
    """
    if shows and not draws():
        return EpochLines(words, run, len(run.history.epochs) + epochs)
    train = run.dataset.train
    samples = (
        train.samples if isinstance(train, Stream) else len(train)
    )  # a stream's: about so many
    return tqdm(
        total=samples and epochs * samples,
        desc=words,
        unit=" samples",
        unit_scale=True,
        mininterval=0.5,
        disable=not shows,
    )


def draws() -> bool:
    """Whether a line that was shown can be overwritten."""
    if os.environ.get(TERMINAL) == "1" or sys.stderr.isatty():
        return True
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"  # a notebook, or an engine of it


class EpochLines:
    """Prints a line after each epoch."""

    def __init__(self, words: str, run, epochs: int):
        self.words, self.run, self.epochs = words, run, epochs

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, samples: int) -> None:
        """Nothing is shown within an epoch."""

    def set_postfix(self, values: dict[str, str], refresh: bool = True) -> None:
        """Print the line; `values` are those of the epoch that is the last in the history."""
        row = self.run.history.last
        metrics = ", ".join(f"{name} {value}" for name, value in values.items())
        print(
            f"{self.words}, epoch {row['epoch']} of {self.epochs}: {metrics}; "
            f"{row['samples_per_second']:.0f} samples/s, {row['seconds']:.1f} s",
            file=sys.stderr,
            flush=True,
        )
