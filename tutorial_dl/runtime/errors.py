"""Exceptions that end training, and one-line summaries of Keras's and TensorFlow's errors."""

import os
import re

from numba_kernels.errors import message_of

# Text that Keras and TensorFlow put around the actual message.
FRAME = re.compile(
    r"Exception encountered when calling|Graph execution error|Detected at node|File \"|Stack trace"
)
HINTS = {
    "must have the same rank": "for labels that are whole numbers, compile with "
    "loss='sparse_categorical_crossentropy'",
}


class TrainingError(RuntimeError):
    """Training can't continue."""


class NotFinite(TrainingError):
    """The loss or a gradient is NaN or infinite; `where` is a step, an epoch or a rank.

    `found` is a NaN in the data, in words, if there is one.
    """

    def __init__(self, what: str, where: str, rate: float, found: str | None = None):
        super().__init__(what, where, rate, found)
        self.what, self.where, self.rate, self.found = what, where, rate, found

    def __str__(self) -> str:
        if self.found:
            return f"{self.what} {self.where}: {self.found}; remove such samples"
        return (
            f"{self.what} {self.where}; use a learning rate below {self.rate}, or data without NaN"
        )


class Terminated(SystemExit):
    """After a batch system's warning: a checkpoint is written, training has ended on all ranks."""

    def __init__(self, path, steps: int):
        super().__init__(os.EX_TEMPFAIL)  # "try again"
        self.path, self.steps = path, steps

    def __str__(self) -> str:
        return f"ended by a signal after step {self.steps}; {self.path} is written, resume from it"


def telling_line(error: BaseException) -> str:
    """Its message in one line: its first line, or the first that is not a frame around others."""
    text = re.sub(r"\x1b\[[\d;]*m", "", message_of(error))
    first = next((line for line in text.splitlines() if line.strip()), "no message").strip()
    if FRAME.match(first):
        text = re.sub(r"\[\[[-+\d\s.eE,\[\]]*\]\]", "[...]", text)  # an array
        text = re.sub(r"\[\[\{\{[^\n]*", "", text)  # a node of the graph
        paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", text)]
        first = next((p for p in paragraphs if p and not FRAME.match(p)), first)
    first = first.partition(" Traceback (most recent call last)")[0]  # of Python, in a graph
    hint = next((f" ({hint})" for words, hint in HINTS.items() if words in first), "")
    return first if hint in first else first + hint
