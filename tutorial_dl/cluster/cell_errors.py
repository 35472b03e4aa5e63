"""The one error that a failed cell shows: the root cause, then one line for every other rank.

Ranks of one cell rarely fail alone: one raises, and the others raise PeerError because of it, or
wait for it in a call that can't be interrupted. Only the first failure matters to the user.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType

from ipyparallel.error import EngineError, TaskAborted
from IPython import get_ipython

from .parcels import CannotSend, pack
from .protocol import Severity
from .rank_status import ranks

OFFER = "c.restart() gives new engines (their variables are lost)"
MISSING = re.compile(r"^name '(\w+)' is not defined", re.MULTILINE)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Failure:
    """The exception of one rank, taken from the error that ipyparallel returns."""

    def __init__(self, error: Exception):
        self.name = getattr(error, "ename", None) or type(error).__name__
        self.message = str(getattr(error, "evalue", None) or "").strip()
        self.traceback = getattr(error, "traceback", None) or ""
        # The client makes these two itself, sometimes as a remote error of that name. The first
        # means that the engine's process has ended.
        self.lost = self.name == EngineError.__name__
        aborted = self.name == TaskAborted.__name__
        if aborted:
            self.message = "not run, because a cell before it failed"
        without = Severity.CAUSED if self.lost or aborted else Severity.OWN
        # The engine adds it to its reply.
        self.severity = (getattr(error, "engine_info", None) or {}).get("severity", without)

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name

    def alike(self) -> tuple:
        """A key equal for errors to be shown once; ignores cell numbers, which differ by rank."""
        return self.name, self.message, re.sub(r"In\[\d+\]", "", ANSI.sub("", self.traceback))


class CellProblem:
    """Base of the errors below, which formats them.

    In a notebook the traceback is shown below the first line of the summary. In a terminal Python
    shows it as a note below the message.

    Attributes:
        summary: Lines, the most important first.
        traceback: Traceback of the root cause, as an engine rendered it.
        failures: The failures by rank.
        seconds: Seconds until the cell ended; 0 for a cell that could not be run.
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
    """A cell exceeded its timeout and was interrupted."""


class CellInterrupted(CellProblem, KeyboardInterrupt):
    """The stop button, or Ctrl-C, ended a cell."""


def explain(failures: Mapping[int, Failure]) -> tuple[list[str], str]:
    """(summary, traceback) of failures by rank: the root cause first, then one line per rank."""
    order = sorted(failures, key=lambda rank: (-failures[rank].severity, rank))
    cause = failures[order[0]]
    same = [rank for rank in order if failures[rank].alike() == cause.alike()]
    summary = [f"{ranks(same)}: {cause}"]
    others = {rank: " ".join(str(failures[rank]).split()) for rank in order if rank not in same}
    summary += [f"rank {rank}: {line}" for rank, line in others.items()]
    return summary, cause.traceback


def hints(failures: Mapping, cluster) -> list[str]:
    """One line on how ranks get the name that they miss, if this notebook has it; else none."""
    errors = [each.message for each in failures.values() if each.name == "NameError"]
    match, shell = MISSING.search("\n".join(errors)), get_ipython()
    if not match or shell is None or match[1] not in shell.user_ns:
        return []
    name, value = match[1], shell.user_ns[match[1]]
    if name in shell.user_ns_hidden:  # IPython's own
        return []
    called = next((key for key, each in shell.user_ns.items() if each is cluster), "c")
    verb, advice = "exists", f'{called}["{name}"] = {name} sends it'
    if statement := _import_of(name, value):
        verb, advice = "is imported", f"write {statement} in a %%px cell"
    else:
        try:
            pack(value)
        except CannotSend:
            advice = "make it in a %%px cell"
    return [f"{name} {verb} in the notebook, not on the ranks: {advice}"]


def _import_of(name: str, value: object) -> str:
    """The import statement that gives `name` this value; "" if none does."""
    if isinstance(value, ModuleType):
        alias = "" if name == value.__name__ else f" as {name}"
        return f"import {value.__name__}{alias}"
    where, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    parts = [part for part in str(where).split(".") if part != "src" and part[0] != "_"]
    public = [".".join(parts[: n + 1]) for n in range(len(parts))]
    for module in (*public, where):  # a package shows most of what it has
        if own and module != "__main__" and getattr(sys.modules.get(module), own, None) is value:
            return f"from {module} import {own}{'' if own == name else f' as {name}'}"
    return ""
