"""What a notebook and its engines tell each other, beside ipyparallel's messages.

- A cell's request carries an `About` in its metadata; the reply of one that failed, a `Severity`.
- QUESTION, sent to an engine's control thread, is answered by a `Doing`. The thread also answers
  while the main thread is in a blocking MPI call, where mpi4py releases the GIL. An engine whose
  main thread holds the GIL inside compiled code can't answer; at signal WRITE, faulthandler, which
  is written in C, writes its current line of Python to a file.
- VALUE is published by a rank that was asked for a variable or to call a function.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

QUESTION = "doing_request"
VALUE = "data_pub"  # a kind of message that ipyparallel's controller passes on
WRITE = getattr(signal, "SIGRTMIN", signal.SIGUSR2 - 7) + 7
ABOUT = "tutorial_dl"  # the key of an `About` in a request's metadata


class About(NamedTuple):
    """What an engine knows of a cell. Numbers of cells grow, also over notebooks that have joined.

    `reported` is the last cell whose end the notebook had reported when it sent this one, `shows`
    whether it shows what ranks wait for, `number` that of its own cell, as in "In[12]".
    """

    cell: int
    reported: int
    shows: bool
    number: int | None


class Severity(IntEnum):
    """A failure's priority as the root cause of those on all ranks."""

    CAUSED = 0  # by another rank's failure
    INTERRUPTED = 1
    OWN = 2


class Doing(NamedTuple):
    """What an engine is doing.

    `silent`: the seconds for which no Python code is known to have run in the main thread (0 at the
    first question). Signal handlers are Python code, too, so a main thread that is silent in a call
    of mpi4py can't be interrupted.
    """

    state: str  # "idle" or "running"
    call: str  # the source of the expression in the cell, such as "comm.allreduce(x)", or ""
    line: int  # its line in the running cell, from 1; 0 if unknown
    mpi: bool  # whether the main thread is in a method of mpi4py
    silent: float
    memory: int  # resident bytes
    processor: float  # cores used since the last question, in percent of one
    waits: str = ""  # the call of a team that it waits in, such as "barrier"; "" if in none
    waited: float = 0.0  # seconds for which it has waited in that call
    number: int = 0  # that of the call among the calls of its team
    team: Sequence[int] = ()  # the ranks of that team, numbered as %%px does
    missing: Sequence[int] | None = None  # those that it waits for; None: it does not know
    shares: Sequence[float] = ()  # of computing, talking and waiting; () if unknown
    talks: bool = False  # whether this cell has called a team

    @property
    def blocked(self) -> float:
        """Seconds for which it has been in an MPI call that can't be interrupted."""
        return self.silent if self.mpi else 0.0

    def meeting(self) -> tuple:
        """Equal for ranks that wait in the same call of the same team."""
        return self.waits, self.number, tuple(self.team)

    def where(self) -> str:
        return f"{self.call or 'its cell'}{f' (line {self.line})' if self.line else ''}"


def position_file(folder: str | Path, rank: int) -> Path:
    """Where an engine writes its position at signal WRITE."""
    return Path(folder, f"where_is_{rank}")


def pipe(folder: str | Path, rank: int) -> Path:
    """The named pipe whose writing end an engine holds open while it lives."""
    return Path(folder, f"alive_{rank}")
