"""The cells that run on a cluster: check that one may start, submit it, remember its imports."""

import ast
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures

import psutil
from ipyparallel.client.magics import ParallelMagics
from IPython import get_ipython
from IPython.core.inputtransformer2 import TransformerManager

from . import cell_display
from .cell_errors import OFFER, CellError, CellInterrupted, CellTimeout
from .cell_output import Output
from .client import PATIENCE
from .job_watch import JobWatch
from .process_watch import Deaths
from .protocol import About, Doing
from .rank_status import BLOCKED, STILL, positions, ranks, still
from .registry import Record
from .running_cell import EVERY, Cell, unfinished

# Seconds until a line says what the ranks do; -1, never, where nobody looks on.
STATUS_AFTER = 2 if ParallelMagics.stream_output else -1
WAITS = "this cell runs when they are done; the stop button ends the wait"
FIND_FILES = ("sys.path.insert", "sys.path.append", "os.chdir")  # calls that imports may need
ENDING = 2.0  # seconds that a rank gets to end a cell that was given up on it


class Cells:
    """Runs cells on a cluster's engines, one after the other, and tracks those not finished."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.done: list[str] = []  # source of the cells that succeeded, for `imports`
        self.now: dict[int, Cell] = {}  # by rank: the cell sent to it last
        self.left: dict[int, Cell] = {}  # by rank: a cell that was given up and still blocks it
        self.deaths: Deaths | None = None

    def attach(self, record: Record) -> None:
        """Set up for new engines, once they answer."""
        self.detach()
        self.client, self.now, self.left = self.cluster.client, {}, {}
        places = self.cluster.places
        processes = {rank: process for rank, (_, process, *_) in enumerate(places) if process}
        self.deaths = Deaths(processes, record.run)
        job, connection = record.batch_job(), record.connection_file("engine")
        hosts = [host for host, *_ in places]
        self.job = job and JobWatch(job, self.client, connection, self.deaths, hosts)

    def detach(self) -> None:
        """Watch the engines' processes no more."""
        if self.deaths is not None:
            self.deaths.leave()

    def check(self, targets: Sequence[int]) -> None:
        """Raise CellError if `targets` can't run a cell: stopped, dead, or still blocked."""
        if not self.cluster.connected:
            raise CellError([f"this cluster was stopped: {OFFER}"])
        lost = self.lost()
        if lost:
            raise CellError(lost)
        # A rank that was interrupted, or has just received what it waited for, may need a moment
        # to end its cell.
        left = self._left(targets).items()
        futures.wait([cell.replies[rank] for rank, cell in left], ENDING)
        answers = self.ask(self._left(targets), PATIENCE)
        stuck = {rank: doing for rank, doing in answers.items() if doing.mpi}
        if stuck:
            raise CellError([*positions(stuck, STILL), OFFER])

    def _left(self, targets: Sequence[int]) -> dict[int, Cell]:
        """The cells, by rank, that were given up and that some of `targets` still run."""
        self.left = unfinished(self.left)
        return {rank: cell for rank, cell in self.left.items() if rank in targets}

    def ask(
        self, ranks: Iterable[int], seconds: float = 0.3, signal: bool = True
    ) -> dict[int, Doing]:
        """What these ranks do; see `Client.doing`."""
        codes = {}
        for rank, cell in list(self.now.items()):  # a live view asks from its thread
            while (before := cell.earlier.get(rank)) is not None and rank in before.pending():
                cell = before
            codes[rank] = cell.code
        return self.client.doing(ranks, codes, seconds, signal)

    def stopped(self, rank: int) -> bool:
        """Whether a signal has stopped the rank's process, as far as that is known here."""
        process = self.cluster.places[rank][1]
        with contextlib.suppress(psutil.Error):
            return process is not None and process.status() == psutil.STATUS_STOPPED
        return False

    def lost(self) -> list[str]:
        """Lines about engines whose processes have ended; empty if all live."""
        status = self.cluster.status()
        dead = [engine for engine in status if not engine.alive]
        if self.job and (why := self.job.lost(bool(dead))):
            return why
        if dead:
            local = any(self.cluster.places[engine.rank][1] for engine in dead)
            self.deaths.happened.wait(1.0 if local else 0.0)
            first = [engine for engine in status if engine.rank in self.deaths.first] or dead
            how = self.deaths.how
            lines = [f"rank {e.rank} (pid {e.pid} on {e.host}) {how}" for e in first]
            return [*lines, f"the MPI world of all {len(status)} ranks ended with it: {OFFER}"]
        away = sorted(set(range(self.cluster.n)) - self.client.uuids.keys())
        if away:
            return [f"{ranks(away)} lost the connection to the controller: {OFFER}"]
        return []

    def free(self, targets, timeout: float | None, page: cell_display.Page) -> None:
        """Wait until `targets` have ended the cells that were given up on them, and say so.

        A rank in compiled code (a large matrix product, a hash) heeds no interrupt until it is
        back. A cell that is sent meanwhile would wait for it without a word, and run later even if
        the user stops it.

        Args:
            timeout: Seconds after which to give up.
            page: What shows whom the wait is for; without a place for a status, it is printed once.

        Raises:
            CellError: If a rank can't run cells any more; see `check`.
            CellTimeout, CellInterrupted: At the time limit, and at KeyboardInterrupt.
        """
        if not self.left:
            return
        self.check([])  # the next line needs engines
        chosen, began = self.client.ranks_of(targets), time.monotonic()
        try:
            self.check(chosen)
            while left := self._left(chosen):
                lines = self._still(left)
                if timeout is not None and time.monotonic() - began > timeout:
                    raise CellTimeout([f"the cell was not run within {timeout:g} s", *lines, OFFER])
                text = "\n".join([*lines, WAITS, OFFER])
                page.status(text)
                if not page.shows_status():
                    page.say_once("free", text)
                futures.wait([cell.replies[rank] for rank, cell in left.items()], EVERY)
            page.status("")
        except KeyboardInterrupt:
            page.end()
            left = self._left(chosen)
            lines = [*self._still(left), OFFER] if left else []
            raise CellInterrupted(["interrupted: the cell was not run", *lines]) from None
        except BaseException:
            page.end()
            raise

    def _still(self, left: Mapping[int, Cell]) -> list[str]:
        """Which of these ranks still run which cell, a line per place; CellError if forever."""
        if lost := self.lost():
            raise CellError(lost)
        answers = self.ask(left)
        if stuck := {rank: doing for rank, doing in answers.items() if doing.blocked > BLOCKED}:
            raise CellError([*positions(stuck, STILL), OFFER])
        return still(left, answers)

    def run(
        self, code: str, targets="all", timeout: float | None = None, buffers: Sequence = ()
    ) -> Cell:
        """Run a cell and wait for it, after the ranks have ended the one before."""
        check_timeout(timeout)
        page = cell_display.page()
        self.free(targets, timeout, page)
        status = page.shows_status() and STATUS_AFTER >= 0
        cell = self.submit(code, targets, timeout, status, buffers)
        cell.wait(page, progress_after=STATUS_AFTER)
        return cell

    def submit(
        self,
        code: str,
        targets="all",
        timeout: float | None = None,
        status: bool = False,
        buffers: Sequence = (),
    ) -> Cell:
        """Send a cell to engines without waiting for it; CellError if they can't run one.

        `status`: whether its status will be shown, so that its ranks need not report long waits.
        `buffers` go with it (variables.py).
        """
        check_timeout(timeout)
        self.check([])  # the next line needs engines
        chosen = self.client.ranks_of(targets)
        self.check(chosen)
        # The engines see that they run the same cell. Its number is greater than that of any
        # earlier cell, also of other notebooks that have joined.
        number = time.time_ns()
        earlier = {rank: self.now[rank] for rank in chosen if rank in self.now}
        queue = [cell for cell in earlier.values() if cell.pending() and not cell.waited]
        reported = min((cell.about.reported for cell in queue), default=number - 1)
        about = About(number, reported, status, number_here())
        output = Output(chosen)
        result = self.client.send_cell(code, chosen, about, output, buffers)
        cell = Cell(self, code, result, output, about, timeout, earlier)
        self.now.update(dict.fromkeys(chosen, cell))
        return cell

    def imports(self) -> str:
        """The top-level import statements of the cells that succeeded so far, in order, each once.

        With them, what they need to find a user's files: `os.chdir` and changes of `sys.path`,
        each as often as it was called, because a path may be relative.
        """
        found: list[str] = []
        for code in self.done:
            tree = ast.parse(TransformerManager().transform_cell(code))
            for node in tree.body:
                text = ast.unparse(node)
                if isinstance(node, ast.Import | ast.ImportFrom):
                    wanted = text not in found
                else:
                    call = node.value if isinstance(node, ast.Expr) else None
                    wanted = isinstance(call, ast.Call) and ast.unparse(call.func) in FIND_FILES
                    # Variables are gone.
                    wanted = wanted and all(isinstance(each, ast.Constant) for each in call.args)
                if wanted:
                    found.append(text)
        return "\n".join(found)


def number_here() -> int | None:
    """The number of the notebook's cell that runs, as in "In[12]"; None in a script."""
    # IPython's own counter is the next cell's in some versions. The inputs, from 1, include ours.
    history = getattr(get_ipython(), "history_manager", None)
    return None if history is None else len(history.input_hist_parsed) - 1


def check_timeout(seconds: float | None) -> None:
    if seconds is not None and not seconds > 0:
        raise ValueError(f"timeout must be more than 0 seconds, got {seconds!r}")
