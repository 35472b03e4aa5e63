"""The cells that run on a cluster: check that one may start, submit it, remember its imports."""

import ast
import time
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager

from . import engine_hooks
from .cell_errors import OFFER, CellError, ranks
from .engine_probe import PATIENCE, Asking
from .job_watch import JobWatch
from .process_watch import Deaths
from .processes import connection_file
from .running_cell import Cell, positions

ENDING = 2.0  # seconds that a rank gets to end a cell that was given up on it


class Cells:
    """Runs cells on a cluster's engines, one after the other, and tracks those not finished."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.done: list[str] = []  # source of the cells that succeeded, for `imports`
        self.now: dict[int, Cell] = {}  # by rank: the cell sent to it last
        self.left: dict[int, Cell] = {}  # by rank: a cell that was given up and still blocks it

    def attach(self, folder: Path, install: bool = True) -> None:
        """Set up for new engines, once they answer; `install`: they are idle and have no hooks."""
        self.client, self.now, self.left = self.cluster.client, {}, {}
        places = enumerate(self.cluster.places)
        self.deaths = Deaths(
            {rank: process for rank, (_, process, *_) in places if process}, folder
        )
        if install:
            installed = self.client[:].apply_async(engine_hooks.install, str(folder))
            installed.get(timeout=self.cluster.timeout)
        self.asking = Asking(self.client, folder)
        self.deaths.watch()
        job, connection = self.cluster.job, connection_file(folder, "engine")
        hosts = [host for host, *_ in self.cluster.places]
        self.job = job and JobWatch(job, self.client, connection, self.deaths, hosts)

    def check(self, targets: Sequence[int]) -> None:
        """Raise CellError if `targets` can't run a cell: stopped, dead, or still blocked."""
        if not self.cluster.connected:
            raise CellError([f"this cluster was stopped: {OFFER}"])
        lost = self.lost()
        if lost:
            raise CellError(lost)
        # A rank that was interrupted, or has just received what it waited for, may need a moment
        # to end its cell.
        futures.wait([self.left[rank].replies[rank] for rank in self._left(targets)], ENDING)
        codes = {rank: self.left[rank].code for rank in self._left(targets)}
        answers = self.asking.ask(list(codes), codes, PATIENCE)
        stuck = {rank: doing for rank, doing in answers.items() if doing.mpi}
        if stuck:
            raise CellError([*positions(stuck, "are still"), OFFER])

    def _left(self, targets: Sequence[int]) -> list[int]:
        """The engines among `targets` that still run a cell that was given up on them."""
        self.left = {rank: cell for rank, cell in self.left.items() if rank in cell.pending()}
        return [rank for rank in self.left if rank in targets]

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

    def submit(self, code: str, targets="all", timeout: float | None = None) -> Cell:
        """Send a cell to engines without waiting for it; CellError if they can't run one."""
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds, got {timeout!r}")
        self.check([])  # the next line needs engines
        chosen = self.client.ranks_of(targets)
        self.check(chosen)
        # The engines see that they run the same cell. Its number is greater than that of any
        # earlier cell, also of other notebooks that have joined.
        number = time.time_ns()
        before = [self.now[rank] for rank in chosen if rank in self.now]
        waiting = [cell.reported for cell in before if cell.pending() and not cell.waited]
        about = {engine_hooks.CELL: number, engine_hooks.REPORTED: min(waiting, default=number - 1)}
        result = self.client.send_cell(code, chosen, about)
        cell = Cell(self, code, result, timeout, about[engine_hooks.REPORTED])
        self.now.update(dict.fromkeys(chosen, cell))
        return cell

    def imports(self) -> str:
        """The top-level import statements of the cells that succeeded so far."""
        found: dict[str, None] = {}  # in order, each once
        for code in self.done:
            tree = ast.parse(TransformerManager().transform_cell(code))
            for node in tree.body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    found[ast.unparse(node)] = None
        return "\n".join(found)
