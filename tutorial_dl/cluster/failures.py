"""The one error that a failed cell shows: what went wrong first, then a line for every other rank.

Ranks of one cell rarely fail alone: one raises, the others raise PeerError because of it, or wait
for it in a call that nothing can interrupt. Only the first is news.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

OFFER = "c.restart() gives new engines (their variables are lost)"
FOLLOWS = re.compile(r"\bPeerError\b.*\brank \d+ failed: ")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Failure:
    """What one rank raised, taken from the error that ipyparallel brings."""

    def __init__(self, error: Exception):
        self.name = getattr(error, "ename", None) or type(error).__name__
        self.message = str(getattr(error, "evalue", None) or "").strip()
        self.traceback = getattr(error, "traceback", None) or ""
        if self.name == "TaskAborted":
            self.message = "not run, because a cell before it failed"

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    @property
    def line(self) -> str:
        """Its message on one line."""
        return " ".join(str(self).split())

    def rank_of_cause(self) -> int:
        """2: a cause by itself; 1: an interrupt; 0: it only follows the failure of another."""
        plain = ANSI.sub("", self.traceback)
        unusable = self.name == "TeamError" and "can't be used" in self.message
        if self.name in ("PeerError", "EngineError", "TaskAborted") or unusable:
            return 0
        if FOLLOWS.search(plain):  # raised in handling a PeerError, or from one
            return 0
        return 1 if self.name in ("KeyboardInterrupt", "CancelledError") else 2

    def alike(self) -> tuple:
        """Equal for errors that need to be shown once. Cells have a number of their own a rank."""
        return self.name, self.message, re.sub(r"In\[\d+\]", "", ANSI.sub("", self.traceback))


class CellProblem:
    """What the errors below have in common: how they look.

    Args:
        summary: Lines, the most important first.
        traceback: Of the root cause, as an engine rendered it.
        failures: What each rank raised that raised something.

    Attributes:
        seconds: Until the cell ended; 0 for one that could not be run.

    In a notebook the traceback stands below the first line of the summary. In a terminal Python
    shows it as a note below the message.
    """

    def __init__(
        self,
        summary: Sequence[str],
        traceback: str = "",
        failures: Mapping[int, Failure] = MappingProxyType({}),
    ):
        super().__init__("\n".join(summary))
        self.summary, self.traceback = list(summary), traceback.strip("\n")
        self.failures = dict(failures)
        self.seconds = 0.0
        if self.traceback:
            self.add_note(ANSI.sub("", self.traceback))

    def _render_traceback_(self) -> list[str]:
        first, *others = self.summary
        return [first, *self.traceback.splitlines(), *others]


class CellError(CellProblem, RuntimeError):
    """A cell failed on some rank, or could not be run."""


class CellTimeout(CellError, TimeoutError):
    """A cell took longer than it was given, and was interrupted."""


class CellInterrupted(CellProblem, KeyboardInterrupt):
    """The stop button, or Ctrl-C, ended a cell."""


def ranks(numbers: Sequence[int]) -> str:
    """As "rank 3" or "ranks 0, 2"."""
    return f"rank{'s'[: len(numbers) != 1]} {', '.join(map(str, sorted(numbers)))}"


def explain(failures: Mapping[int, Failure]) -> tuple[list[str], str]:
    """Summary and traceback: the root cause first, then one line a rank.

    Args:
        failures: By rank; at least one.
    """
    order = sorted(failures, key=lambda rank: (-failures[rank].rank_of_cause(), rank))
    cause = failures[order[0]]
    same = [rank for rank in order if failures[rank].alike() == cause.alike()]
    summary = [f"{ranks(same)}: {cause}"]
    summary += [f"rank {rank}: {failures[rank].line}" for rank in order if rank not in same]
    return summary, cause.traceback
