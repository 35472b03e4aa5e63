"""`Cell`: wait for a cell on the engines, never forever.

A cell is over when all its ranks are done. It also ends, with an error, when

- a rank failed and the others are in raw MPI calls that can't be interrupted,
- an engine's process is gone,
- the stop button was pressed, or the cell's time is up, and ranks do not stop.

A rank that goes on computing after another one failed may continue, and the notebook says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from concurrent import futures

from ipyparallel.error import NoEnginesRegistered

from . import cell_display
from .cell_errors import OFFER, CellError, CellInterrupted, CellTimeout, Failure, explain, hints
from .cell_output import Output
from .client import PATIENCE, Result
from .protocol import About, Doing, Severity
from .rank_status import BLOCKED, WERE, positions, ranks, status, still

GRACE = 3.0  # seconds after the first failure (or an interrupt) until hanging ranks are given up
STALL = 10.0  # seconds after which a cell that hangs without a failure is reported
LOOK = 0.1  # seconds between two polls
EVERY = 1.0  # seconds between two questions to the engines, to say what they do
SOON = 1.0  # seconds after which a cell that has to wait for an earlier one says so
STOP = "the stop button ends the cell"
EARLIER = "this cell runs after it; the stop button ends both"


class Cell:
    """One cell that was sent to engines; `earlier` are those sent to its ranks before it."""

    def __init__(
        self,
        cells,
        code: str,
        result: Result,
        output: Output,
        about: About,
        timeout: float | None,
        earlier: Mapping[int, Cell],
    ):
        self.cells, self.code, self.result, self.output = cells, code, result, output
        self.about, self.timeout = about, timeout
        self.waited = False  # whether `wait` has seen its end
        self.earlier = unfinished(earlier)
        self.replies = result.replies
        self.were: dict[int, Doing] = {}  # where ranks were when they were interrupted
        result.cell = self  # for %pxresult

    def pending(self) -> list[int]:
        return [rank for rank, reply in self.replies.items() if not reply.done()]

    def failures(self) -> dict[int, Failure]:
        replies = {rank: each.result() for rank, each in self.replies.items() if each.done()}
        return {k: Failure(reply) for k, reply in replies.items() if isinstance(reply, Exception)}

    def wait(
        self,
        page: cell_display.Page | None = None,
        *,
        stream_output: bool = True,
        groupby: str = "order",
        progress_after: float = -1,
        signal_on_interrupt: str | int = "SIGINT",
    ) -> None:
        """Show the ranks' output until the cell is over; raise the error it ends with.

        Args:
            page: What shows it; None: a new one.
            stream_output: Show output as it arrives; else all at the end.
            groupby: As in `cell_layout.layout`.
            progress_after: Seconds until a line says what the ranks do; -1: no such line.
            signal_on_interrupt: Signal sent to the ranks at KeyboardInterrupt.

        Raises:
            CellError: If a rank failed, is lost, or is blocked forever.
            CellTimeout, CellInterrupted: After `timeout`, and at KeyboardInterrupt in this process;
                the ranks were interrupted.
        """
        began, kind, reason = time.monotonic(), CellError, ""
        page = cell_display.page() if page is None else page
        page.follow(self.output, stream_output, groupby)
        try:
            if not self._until_over(page, progress_after):
                self.were = self.cells.ask(self.pending(), PATIENCE)
                kind, reason = CellTimeout, f"the cell took longer than {self.timeout:g} s"
        except KeyboardInterrupt:
            kind, reason = CellInterrupted, "interrupted"
        if reason:
            with contextlib.suppress(KeyboardInterrupt):  # a second one: do not wait
                self._interrupt(signal_on_interrupt)
        self.waited = True  # also if a further Ctrl-C ends what follows
        self.earlier = {}
        said = [reply.output for reply in self.replies.values() if reply.done()]
        # Output may arrive after the reply; after the stop button, don't wait long for it.
        futures.wait(said, timeout=0.3 if reason else 1.0)
        page.end()
        error = self._verdict(kind, reason)
        if error is not None:
            error.seconds = time.monotonic() - began
            raise error
        self.cells.done.append(self.code)

    def take_values(self) -> dict[int, list]:
        """The buffers that its ranks have published, by rank; the cell keeps them no longer."""
        said = [reply.output for reply in self.replies.values()]
        while futures.wait(said, timeout=LOOK).not_done:  # large ones arrive after the reply
            if lost := self.cells.lost():
                raise CellError(lost)
        return self.output.take_values()

    def _lives(self) -> bool:
        """Whether ranks still run the cell; none does once an engine's process has ended."""
        return bool(self.pending()) and not self.cells.deaths.happened.is_set()

    def _until_over(self, page: cell_display.Page, status_after: float) -> bool:
        """Wait until all ranks are done or blocked forever; False if the time was up before."""
        began = next_look = time.monotonic()
        failed, report = None, ""
        shows = status_after >= 0 and page.shows_status()
        next_status = began + status_after if shows else float("inf")
        soon = float("inf") if shows else began + SOON
        while self._lives():
            self.result.wait(LOOK)
            now = time.monotonic()
            if self.timeout is not None and now - began > self.timeout:
                return False
            page.update()
            if now >= next_status and self._lives():
                next_status = now + EVERY
                lines = report or self._waits_for_earlier() or self._status()
                page.status(f"{now - began:.0f} s: {lines}")
            if now > soon:
                soon = float("inf")
                page.say_once("earlier", self._waits_for_earlier())
            if failed is None and self.failures():
                failed = now
            since = began + STALL - GRACE if failed is None else failed
            if now < max(since, next_look):
                continue
            next_look = now + 0.5
            answers = self.cells.ask(self.pending())
            hopeless = self._is_hopeless(answers)
            if now - since < GRACE:
                continue
            if hopeless and failed is not None:
                return True
            report = ""
            if self._lives() and (hopeless or failed is not None):
                causes = explain(failures)[0] if (failures := self.failures()) else []
                lines = [*causes, *self._positions(answers), f"waiting for these ranks; {STOP}"]
                report = "\n".join(lines)
                if not shows:
                    page.say_once("report", report)
        return True

    def _status(self) -> str:
        """What the ranks do; ranks that can't answer at once are not waited for."""
        pending = self.pending()
        answers = self.cells.ask(pending, 0.1, signal=False)
        stopped = [rank for rank in pending if rank not in answers and self.cells.stopped(rank)]
        return status(answers, pending, self.replies.keys() - set(pending), stopped)

    def _waits_for_earlier(self) -> str:
        """Lines that say which ranks still run an earlier cell; "" if this one has begun."""
        self.earlier = unfinished(self.earlier)
        lines = still(self.earlier, self.cells.ask(self.earlier)) if self.earlier else []
        return "\n".join([*lines, EARLIER] if lines else [])

    def _is_hopeless(self, answers: Mapping[int, Doing]) -> bool:
        """Whether all ranks that are not done are in MPI calls that can't be interrupted."""
        return all(k in answers and answers[k].blocked > BLOCKED for k in self.pending())

    def _interrupt(self, signal: str | int) -> None:
        """Send a signal to the ranks that are not done, and wait up to GRACE seconds for them."""
        with contextlib.suppress(NoEnginesRegistered, LookupError):  # they died
            self.cells.client.send_signal(signal, targets=self.pending(), block=False)
        end = time.monotonic() + GRACE
        while self._lives() and time.monotonic() < end:
            self.result.wait(LOOK)
            if self._is_hopeless(self.cells.ask(self.pending())):
                break

    def _verdict(self, kind: type, reason: str) -> Exception | None:
        """The error that this cell ends with, if any."""
        failures, pending = self.failures(), self.pending()
        if not (failures or pending or reason):
            return None
        causes = {rank: each for rank, each in failures.items() if each.severity == Severity.OWN}
        died = self.cells.deaths.happened.is_set() or any(each.lost for each in failures.values())
        if died:
            summary = self.cells.lost() + (explain(causes)[0] if causes else [])
            return CellError(summary, failures=failures)
        self.cells.left.update(dict.fromkeys(pending, self))
        summary, traceback = explain(failures) if failures else ([], "")
        summary += hints(failures, self.cells.cluster)
        if reason and not causes:  # KeyboardInterrupts, and failures caused by them
            back, size = len(self.replies) - len(pending), len(self.replies)
            rest = f"{ranks(pending)} did not stop" if pending else "variables are kept"
            summary, traceback = [f"{reason}: {back} of {size} ranks stopped, {rest}"], ""
            if kind is CellTimeout:
                summary += positions(self.were, WERE)
        elif reason:
            summary.append(reason)
            kind = CellError if kind is CellInterrupted else kind
        if pending:
            summary += [*self._positions(self.cells.ask(pending, PATIENCE)), OFFER]
        return kind(summary, traceback, failures)

    def _positions(self, answers: Mapping[int, Doing]) -> list[str]:
        silent = [rank for rank in self.pending() if rank not in answers]
        unknown = [f"{ranks(silent)}: still computing, position unknown"] if silent else []
        return positions(answers) + unknown


def unfinished(cells: Mapping[int, Cell]) -> dict[int, Cell]:
    """Those of these cells, by rank, that the rank still runs."""
    return {rank: cell for rank, cell in cells.items() if rank in cell.pending()}
