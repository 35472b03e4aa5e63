"""`Cell`: a rank's side of a search. Its ranks train one set of values on one fold at a time.

Whatever happens in a training ends that training only: an error, a loss that is not finite, a rank
that was killed or has no memory left, a deadline. The ranks then recover their team, or make a
smaller one of those that are left, and the first of them tells the coordinator.

A training that hangs is interrupted in Python by its deadline. If it hangs in compiled code, the
process ends itself `GRACE` seconds later; its cell goes on without it, or is dropped.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import replace
from threading import get_ident
from typing import Any

import numpy as np

from numba_kernels.errors import DeadlineError, PeerError
from numba_kernels.team.bytes import broadcast
from numba_kernels.team.stall import has_ended

from .. import data as datasets
from ..config import OutputConfig
from ..extras import missing
from ..interop.layers import synchronised
from ..runtime.callback import Callback
from ..runtime.errors import NotFinite, telling_line
from ..runtime.handing_out import opened
from ..training.columns import columns
from ..training.setup import prepare
from ..user_function import is_reference
from .coordinator import GRACE, Link, Refused
from .folds import fold_of
from .leader import Leader
from .lifelines import Lifeline
from .merit import check_column, merit_of
from .mpi_port import Mail
from .options import check, config_of, sets_of_each_model
from .search import Search

IDLE = 0.005  # seconds between two looks for a message
LOOK = 1.0  # seconds between two looks at the coordinator's process
CHECK = 300.0  # seconds for the data and a model to be there
REGROUP = 60.0  # seconds for the ranks of a cell to find each other again
NOTE = "note: "  # how a line begins that says what a training does differently from what was asked


class TrialDeadline(Exception):
    """A training took longer than it may."""


class MpiLink(Link):
    """By MPI: `team` are all ranks of the search, and rank 0 coordinates; `comm` is theirs.

    `line`: the connection to a coordinator on another machine.
    """

    def __init__(self, team, comm, line: Lifeline | None = None):
        self.team, self.mail, self.line = team, Mail(comm), line

    def send(self, message: dict) -> None:
        self.mail.send(0, message)

    def messages(self) -> list[dict]:
        found = []
        while (one := self.mail.receive()) is not None:
            found.append(one[1])
        return found

    def is_broken(self) -> bool:
        return has_ended(self.team.pid(0)) or (self.line is not None and self.line.has_ended())

    def close(self) -> None:
        self.mail.flush(5.0)
        if self.line is not None:
            self.line.close()


class Reporter(Callback):
    """Tells the coordinator the figure of merit after each epoch, and stops when it says so."""

    def __init__(self, cell: Cell, trial: int, epochs: int):
        self.cell, self.trial, self.epochs = cell, trial, epochs
        self.stopped, self.value = False, np.nan

    def on_step_end(self, trainer, loss: float, samples: int) -> None:
        self._look(trainer)

    def on_epoch_end(self, trainer, row: dict) -> None:
        value = self.cell.merit(trainer)
        self.value = value if len(self.cell.search.merits) > 1 else float(value)
        # The last epoch's figure is the result, which cannot be pruned any more
        if self.cell.team.rank == 0 and row["epoch"] < self.epochs:
            report = {"what": "report", "trial": self.trial, "epoch": int(row["epoch"])}
            self.cell.link.send(report | {"value": self.value})
        self._look(trainer)

    def _look(self, trainer) -> None:
        if self.cell.team.rank == 0 and self.cell.is_told_to_stop(self.trial):
            self.stopped = True
            trainer.stop("the coordinator has stopped it")


class Cell:
    """The ranks of a cell.

    Args:
        search: What is searched.
        team: The team of this cell's ranks.
        link: The way to the coordinator (`Link`).
        number: Of the cell.
    """

    def __init__(self, search: Search, team, link: Link, number: int = 0):
        self.search, self.link, self.team, self.size = search, link, team, team.size
        self.base = replace(search.base, output=OutputConfig(quiet=True))
        # It chooses sets of values, if the coordinator asks this rank
        of = search.sampler, self.base.data.seed, number, len(search.merits)
        self.leader = Leader(search.space, *of)
        self.merit, self.dataset = None, None
        self.interruptible = False  # whether `interrupt` raises
        self.queue: list[dict] = []  # messages that have come during a training
        self.notes: list[str] = []  # on the training
        self.looked = time.monotonic()  # when the coordinator's process was last looked at

    @classmethod
    def for_rank(cls, search: Search, team, members: list[list[int]], link: Link) -> Cell:
        """The cell of this rank of `team`; `members` are the ranks of each. Collective."""
        mine = next((i for i, ranks in enumerate(members) if team.rank in ranks), len(members))
        return cls(search, team.split(mine), link, mine)

    def serve(self) -> None:
        """Train what the coordinator sends, until it says that the search has ended."""
        why = self.check()
        if self.team.rank == 0:
            self.link.send({"what": "refused", "why": why} if why else {"what": "ready"})
        while (message := self._next()) is not None:
            if message["what"] == "choose":
                self.link.send(self.choose(message))
            # A cell that refuses stays until the end: a process that ends is taken for killed
            if message["what"] != "train" or why is not None:
                continue
            ended = self.train(message)
            if self.team.rank == 0:
                self.link.send(ended)
            if "gone" in ended:
                break
        self.link.close()

    def _next(self) -> dict | None:
        """The next message; None if the search has ended, or the coordinator's process has."""
        while True:
            self._collect()
            if self.queue:
                message = self.queue.pop(0)
                return None if message["what"] == "end" else message
            if time.monotonic() - self.looked > LOOK:
                self.looked = time.monotonic()
                if self.link.is_broken():
                    return None
            time.sleep(IDLE)

    def _collect(self) -> None:
        self.queue += self.link.messages()

    def is_told_to_stop(self, trial: int) -> bool:
        self._collect()
        if time.monotonic() - self.looked > LOOK:
            self.looked = time.monotonic()
            if self.link.is_broken():
                return True
        return any(
            message["what"] == "end" or (message["what"] == "stop" and message["trial"] == trial)
            for message in self.queue
        )

    def check(self) -> str | None:
        """Why no set of values can be trained, in one line; None if some can. Collective.

        The data must be there and have so many folds, and the figure of merit must exist. A model
        that can't be built proves nothing about other sets: the trials tell.
        """
        found = self._guarded(self._checked, CHECK, kill=False)  # if late, the first trial loads
        if "gone" in found:
            return found["gone"]
        # A rank may refuse alone, as its node lacks a file; then its cell can't train
        why = found.get("refused", "")
        try:
            said = [broadcast(self.team, why, rank) for rank in range(self.team.size)]
        except PeerError as error:
            return telling_line(error)
        return next(filter(None, said), None)

    def _checked(self) -> dict:
        try:
            self._load()
            fold = self._fold(0)
        except (PeerError, MemoryError):
            raise
        except Exception as error:
            raise Refused(in_a_line(error)) from error
        merits = [name for name in self.search.merits if not is_reference(name)]
        if not merits:
            return {}
        found: dict[str, None] = {}
        for values in sets_of_each_model(self.search.space):
            trainer = self._prepared(values, fold)
            found |= dict.fromkeys(columns(trainer))
            del trainer
            self._forget()
            if found.keys() >= set(merits):
                return {}
        try:
            for name in merits:
                check_column(name, found)
        except ValueError as error:
            raise Refused(str(error)) from None
        return {}

    def _load(self) -> None:
        """Find the figure of merit, and load the data, once."""
        if self.merit is None:
            self.merit = merit_of(self.search.merit)
        if self.dataset is None:
            loaded = datasets.load(self.base.data.data, **self.base.data.files)
            self.dataset = opened(loaded, self.team)

    def _fold(self, number: int) -> datasets.Dataset:
        return fold_of(self.dataset, number, self.search.folds, self.base.data.seed)

    def choose(self, request: dict) -> dict:
        """The next set of values, or why there is none, as a message. Not collective."""
        try:
            return self.leader.answer(request)
        except Exception as error:
            return {"what": "failed", "why": f"it could not choose: {in_a_line(error)}"}

    # One training

    def train(self, task: dict) -> dict:
        """Train; returns the message that says how it has ended, for the first rank to send.

        The team is usable afterwards, or "gone" says why not. `task` says trial, fold, values, and
        the seconds that it may take (deadline).
        """
        began, self.notes = time.monotonic(), []
        ended = self._guarded(lambda: self._trained(task), task["deadline"])
        ended |= {"what": "ended", "trial": task["trial"], "fold": task["fold"]}
        ended["notes"] = self.notes
        ended |= {"ranks": [int(rank) for rank in self.team.world_ranks]}
        return ended | {"seconds": time.monotonic() - began}

    def _guarded(self, work: Callable[[], dict], deadline: float, kill: bool = True) -> dict:
        """What `work` returns, or how it has failed; the team is usable afterwards."""
        try:
            apart = None
            with Limit(deadline, kill):
                try:
                    self.interruptible = True
                    found = work()
                finally:
                    self.interruptible = False
                try:
                    self.team.barrier()
                except PeerError as one:  # another rank was lost, or interrupted in its last step
                    apart = one
            return found if apart is None else found | self._mend(apart)
        except TrialDeadline:
            error: BaseException = TrialDeadline(f"longer than {deadline:g} s")
            why = f"it took {error}"
        except KeyboardInterrupt as one:
            if self.link.ends_with_interrupt:
                raise
            error, why = one, "interrupted"
        except Refused as one:
            self._mend(one)
            return {"refused": str(one)}
        except NotFinite as one:
            error, why = one, f"diverged: {telling_line(one)}"
        except MemoryError as one:
            error, why = one, "out of memory"
        except PeerError as one:
            error, why = one, telling_line(one)
        except Exception as one:
            error, why = one, f"{type(one).__name__}: {telling_line(one)}"
        error.__traceback__ = None  # its frames hold the model
        found = {"state": "stopped" if why == "interrupted" else "failed", "why": why}
        return found | self._mend(error)

    def interrupt(self, *_) -> None:
        """Handle a signal: end what is trained. What is mended after a training goes on."""
        if self.interruptible:
            self.interruptible = False
            raise KeyboardInterrupt

    def _trained(self, task: dict) -> dict:
        self._load()
        trainer = self._prepared(task["values"], self._fold(task["fold"]))
        epochs = config_of(self.base, task["values"]).schedule.epochs
        reporter = Reporter(self, task["trial"], epochs)
        trainer.callbacks.append(reporter)
        trainer.fit_to(epochs)
        del trainer
        self._forget()
        if reporter.stopped:
            return {"state": "stopped", "why": "stopped"}
        if not np.isfinite(reporter.value).all():
            return {"state": "failed", "why": f"diverged: the figure of merit is {reporter.value}"}
        return {"state": "complete", "value": reporter.value}

    def _prepared(self, values: dict, fold: datasets.Dataset):
        """The trainer of a set of values. Notes are kept: the coordinator says each once."""
        said, config = WithoutNotes(sys.stderr), config_of(self.base, values)
        self.notes = said.notes
        try:
            with redirect_stderr(said):
                return prepare(config, self.team, synchronised, fold)
        finally:
            said.end()

    def _mend(self, error: BaseException) -> dict:
        """Make the team usable after a failed training. Collective in the cell."""
        self._forget()
        self.team.abort(error)
        try:
            self.team.recover(REGROUP)
            return {}
        except (PeerError, DeadlineError):
            pass
        try:
            self.team = self.team.regroup(REGROUP)
        except (PeerError, DeadlineError) as one:
            return {"gone": f"its ranks did not find each other again: {telling_line(one)}"}
        note = f"goes on with {self.team.size} of its {self.size} ranks"
        try:  # some sets may need more ranks than are left
            check(self.search.space, self.base, self.team.size)
        except ValueError as one:
            return {"gone": f"{telling_line(one)}"}
        return {"note": note}

    def _forget(self) -> None:
        """Free what a training has left, so that memory does not grow with the trials."""
        if (keras := sys.modules.get("keras")) is not None:
            keras.utils.clear_session()
        gc.collect()


class WithoutNotes:
    """Standard error, but for notes of the thread that makes it, until `end`: these go to `notes`.

    A line that has begun may become a note, so it waits for its end, or for `flush`.
    """

    def __init__(self, stream):
        self.stream, self.thread, self.line, self.notes = stream, get_ident(), "", []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        if get_ident() != self.thread:
            return self.stream.write(text)
        *lines, self.line = (self.line + text).split("\n")
        self.notes += [line[len(NOTE) :].strip() for line in lines if line.startswith(NOTE)]
        self.stream.writelines(f"{line}\n" for line in lines if not line.startswith(NOTE))
        return len(text)

    def flush(self) -> None:
        if get_ident() == self.thread and self.line:
            self.stream.write(self.line)
            self.line = ""
        self.stream.flush()

    def end(self) -> None:
        self.flush()
        self.thread = None  # a logger may have kept this object: now it is the stream


def in_a_line(error: Exception) -> str:
    """What went wrong with the data or a user's file; ours says all there is to say."""
    text = missing(error) or telling_line(error)
    known = isinstance(error, ValueError | TypeError | OSError)
    return text if known or missing(error) else f"{type(error).__name__}: {text}"


class Limit:
    """A context that ends after `seconds`: by TrialDeadline in Python, and if `kill`, by the
    process's end if `GRACE` seconds later it is still in compiled code."""

    def __init__(self, seconds: float, kill: bool = True):
        self.seconds, self.kill = seconds, kill

    def __enter__(self) -> None:
        self.nowhere = open(os.devnull, "w")
        self.before = signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        if self.kill:
            faulthandler.dump_traceback_later(self.seconds + GRACE, exit=True, file=self.nowhere)

    def __exit__(self, *_) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
        faulthandler.cancel_dump_traceback_later()
        self.nowhere.close()

    def _raise(self, *_) -> None:
        raise TrialDeadline
