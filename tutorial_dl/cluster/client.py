"""ipyparallel's client and results, with what a cluster needs and ipyparallel does not offer.

It has no public name for whether a client is closed, for an engine's UUID, for the reply of each
engine, for messages of a new kind to an engine's control thread, or for metadata of a cell. The
two classes here derive from ipyparallel's to reach its private names, and no other file uses these.
Engines are asked what they do without waiting for those that can't answer.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import ipyparallel as ipp
from ipyparallel.error import NoEnginesRegistered

from . import cell_display
from .cell_output import Output
from .protocol import ABOUT, QUESTION, WRITE, About, Doing, position_file

PATIENCE = 1.0  # seconds after which an answer is no longer expected; engines share their cores
# At the first of these calls on a communicator, mpi4py duplicates it and holds the GIL meanwhile.
KEEPS_GIL = re.compile(r"\.(reduce|allreduce|scan|exscan)\(")
FRAME = re.compile(r'  File "(.*)", line (\d+) in ')  # a line of faulthandler's output


class Client(ipp.Client):
    """A client that can ask engines, and send cells with metadata."""

    def __init__(self, connection: Path, timeout: float):
        super().__init__(str(connection), timeout=timeout)
        self._run = connection.parents[1]  # where engines that can't answer write their position
        self._questions: dict[int, tuple[float, Future]] = {}
        self._one_at_a_time = threading.Lock()  # a live view asks from a thread

    @property
    def connected(self) -> bool:
        return not self._closed

    @property
    def uuids(self) -> dict[int, str]:
        """The UUIDs of the engines that are connected, by rank."""
        return dict(self._engines)

    def ranks_of(self, targets) -> list[int]:
        """The ranks that `targets` means, in any form that ipyparallel accepts."""
        return self._build_targets(targets)[1]

    def wait_for_first_output(self, rank: int, seconds: float = 10.0) -> bool:
        """Wait until an idle engine's output arrives; False after `seconds`.

        The subscription to what engines publish is made in the background when the client connects,
        and what they publish before that is lost: a cell's output, and the message that it is over.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            asked = self[rank].execute("", silent=False, block=False)
            if asked.wait(1.0) and asked.wait_for_output(0.3):
                return True
        return False

    def ask(self, rank: int) -> Future | None:
        """Send QUESTION to an engine's control thread; None if the engine is not connected."""
        uuid = self._engines.get(rank)
        if uuid is None or self._closed:
            return None
        return self._send(self._control_stream, QUESTION, content={}, ident=uuid.encode())

    def doing(
        self, ranks: Iterable[int], codes: Mapping[int, str], seconds: float, signal: bool = True
    ) -> dict[int, Doing]:
        """What engines that run the cells `codes` do, for those that respond within `seconds`.

        `signal`: whether those that can't answer are sent a signal at which they write where they
        are; that may take 0.3 s per engine.
        """
        found = {}
        with self._one_at_a_time:
            for rank in ranks:
                if rank not in self._questions and (question := self.ask(rank)):
                    self._questions[rank] = time.monotonic(), question
            asked = {rank: self._questions[rank] for rank in ranks if rank in self._questions}
            futures.wait([question for _, question in asked.values()], timeout=seconds)
            for rank, (since, question) in asked.items():
                silent, code = time.monotonic() - since, codes.get(rank, "")
                if question.done():
                    del self._questions[rank]
                    found[rank] = Doing(**question.result()["content"])
                elif signal and silent > PATIENCE and (doing := self._written(rank, silent, code)):
                    found[rank] = doing
        return found

    def _written(self, rank: int, silent: float, code: str) -> Doing | None:
        """The position in the cell `code` that an engine writes to its file at a signal."""
        file = position_file(self._run, rank)
        if not file.exists():
            return None  # don't send the signal: the engine has no handler for it
        before = file.stat().st_size
        with contextlib.suppress(NoEnginesRegistered, LookupError):  # it has ended meanwhile
            self.send_signal(int(WRITE), targets=rank, block=False)
        end = time.monotonic() + 0.3
        while file.stat().st_size == before and time.monotonic() < end:
            time.sleep(0.01)
        with file.open(errors="replace") as lines:
            lines.seek(before)
            frames = FRAME.findall(lines.read())
        cells = [int(line) for name, line in frames if "ipykernel_" in name]
        if not cells:
            return None
        line = cells[-1]  # the outermost frame: functions may come from earlier cells
        text = (["", *code.splitlines()] + [""] * line)[line].strip()
        mpi = "ipykernel_" in frames[0][0] and len(cells) == 1 and bool(KEEPS_GIL.search(text))
        return Doing("running", text, line, mpi, silent, 0, 0.0)

    def send_cell(
        self, code: str, ranks: Sequence[int], about: About, output: Output, buffers: Sequence = ()
    ) -> Result:
        """Send a cell as a DirectView does, which has no way to add metadata or buffers.

        Our kernel drops cells that were waiting for one that failed (engine.py); the way of
        ipykernel, which `stop_on_error` switches off, also drops cells that come soon after it.
        """
        content = dict(code=code, silent=False, user_expressions={}, stop_on_error=False)
        replies = [
            self._send(
                self._mux_stream, "execute_request", content=content, metadata={ABOUT: about},
                buffers=list(buffers), ident=self._engines[rank].encode(), track_outstanding=True,
                message_future_hook=partial(self._follow, rank, output),
            )
            for rank in ranks
        ]  # fmt: skip
        return Result(self, replies, fname="%px", targets=list(ranks), owner=True)

    def _follow(self, rank: int, output: Output, reply: Future) -> None:
        """Have `output` receive the messages of a cell that is about to be sent."""

        def arrived(message: dict) -> None:
            output.receive(rank, message)
            # ipyparallel keeps the same, without a limit.
            reply.output.metadata.update(stdout="", stderr="", outputs=[])

        reply.iopub_callbacks.append(arrived)


class Result(ipp.AsyncResult):
    """The result of a cell, whose output `cell.output` has."""

    @property
    def replies(self) -> dict[int, Future]:
        """The reply of each rank."""
        return dict(zip(self._targets, self._children, strict=True))

    def get(self, *args, **kwargs):
        """The results; raises the error of the cell, as a cell that was waited for does."""
        if not self.cell.waited:
            self.cell.wait(cell_display.Page())  # which shows nothing
        return super().get(*args, **kwargs)

    @property
    def stdout(self) -> list[str]:
        return [self.cell.output.printed(rank, "stdout") for rank in self._targets]

    @property
    def stderr(self) -> list[str]:
        return [self.cell.output.printed(rank, "stderr") for rank in self._targets]

    def display_outputs(self, groupby: str = "order", result_only: bool = False) -> None:
        """Show what the ranks have shown, as below the cell."""
        page = cell_display.page()
        page.follow(self.cell.output, False, groupby)
        page.end()
