"""`Cluster`: start, restart and stop an MPI cluster of engines, and leave nothing behind.

A cluster has a controller, which passes messages between the notebook and the engines; mpiexec; and
the engines, which are its ranks. A learner only ever ends the notebook's kernel, often abruptly. So
controller and mpiexec each run under a guard (launch/guard.py) that ends them when the kernel is
gone, however it ended; the engines' guard watches the controller as well.

    kernel --- guard --- controller          (removes the cluster's folder at the end)
          \\-- guard --- mpiexec --- engines  (watches kernel and controller)

If a cluster may outlive its kernel (`keep`), the guards watch the lease watcher (lease.py) instead,
which ends when there has been no client for a while. With engines in a batch job, job_runner.py
takes the place of the second guard, and watches the controller.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import psutil
import traitlets.log

from ..words import counted
from . import magics, mpi_launcher, processes, profile, registry, view
from .batch_job import Job
from .cell_runner import Cells
from .client import Client
from .lease import Lease
from .process_watch import lives
from .registry import ClusterError, Record, short_tracebacks
from .variables import Ranks, is_names, selected

_running: Cluster | None = None  # one cluster per kernel, because %%px uses one


class Engine(NamedTuple):
    rank: int  # in MPI's world, which is also its id
    host: str
    pid: int
    alive: bool


def _where_am_i() -> tuple[int, int, str, int]:
    """Runs on an engine: its rank, the size of its MPI world, its host and pid."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, socket.gethostname(), os.getpid()


def answers(ask, seconds: float, patience: float = 5.0) -> list:
    """Ask all engines, again after `patience` (doubled each time), until all of them answer.

    The controller drops a message to an engine whose connection is not complete yet. `ask` sends a
    request that may be repeated, and returns its AsyncResult.
    """
    end = time.monotonic() + seconds
    while not (asked := ask()).wait(min(patience, max(0.0, end - time.monotonic()))):
        if time.monotonic() >= end:
            raise ClusterError(f"the engines have started, but gave no answer within {seconds:g} s")
        patience *= 2
    return asked.get()


class Cluster(Ranks):
    """A running cluster; `start` makes one, `join` finds one.

    c["x"] is a list of every rank's variable x, c[0]["x"] that of rank 0, c["x"] = value sends a
    value to all ranks, and c.run(function) calls a function on them (variables.py).

    Attributes:
        client: The ipyparallel Client. client[:] is all engines, client[2] the engine of rank 2.
        n: Number of engines.
        name: Its name for `join` and `python -m tutorial_dl cluster`.
        timeout: Seconds that `start` and `restart` wait for the engines.
        joined: Connected by `join`, so it does not end with this kernel.
        places: Host, process if it runs here, pid and engine's UUID of every rank.
        cells: Runs cells on the engines.
    """

    def __init__(self, record: Record, of: profile.Profile, timeout: float):
        self._record, self._profile, self.timeout = record, of, timeout
        self.client: Client | None = None
        self._lease: Lease | None = None
        self.joined = False
        self._ends = False  # whether `stop` has begun
        self.places: list[tuple[str, psutil.Process | None, int, str]] = []
        self.cells = Cells(self)

    one = False  # whether it is one rank, whose values are not in a list

    @property
    def cluster(self) -> Cluster:
        return self

    @property
    def numbers(self) -> range:
        return range(self.n)

    @property
    def n(self) -> int:
        return self._record.n

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def local(self) -> bool:
        """Whether its engines run on this machine."""
        return self._profile.kind == "local"

    @property
    def job(self) -> Job | None:
        """The batch job that holds the engines; None if they are not in one of their own."""
        return self._record.batch_job()

    @property
    def connected(self) -> bool:
        """Whether the client is connected; False once the cluster was stopped."""
        return self.client is not None and self.client.connected

    @property
    def phase(self) -> str:
        """ "running" or "restarting"; "replaced" by another notebook; "stopped"; or "left"."""
        now = self._record.now()
        if self.connected:
            if self.cells.client is not self.client:
                return "restarting"
            if now is None:
                return "stopped"  # by another process
            return "running" if now.controller == self._record.controller else "replaced"
        if running() is self:
            return "restarting"
        return "stopped" if now is None or self._ends else "left"

    def bring_up(self) -> None:
        """Start everything, or what a restart has ended; nothing is left if that fails."""
        record, self._ends = self._record, False
        starts = processes.Startup(record, self._profile, self.timeout)
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)
        try:
            if record.now() is None:  # a restart: the controller's guard has removed the folder
                record.name, folder = registry.take_folder(None, record.name)
                record.folder = str(folder)
            record.starter = registry.process(os.getpid())
            record.save()
            if record.keep is None:
                if not (record.watch and registry.alive(record.watch[0])):
                    record.watch = [record.starter]
            elif not registry.alive(record.watcher):  # else: a restart
                self._lease = Lease(record.path)
                starts.start_watcher()
            with processes.reserved_ports() as ports:
                starts.start_controller(ports)
                if self.local:
                    starts.start_engines()
                starts.wait_for_controller()
                self._connect()
                if not self.local:
                    starts.start_engines()
                starts.wait_for_engines(self.client)
                self._note_places()
        except BaseException:  # Ctrl-C included
            self.end()
            raise
        finally:
            starts.progress.clear()

    def _connect(self) -> None:
        file = self._record.connection_file("client")
        # The logger is that of the application: IPython's in a terminal, a kernel's in a notebook.
        logger = traitlets.log.get_logger()
        getattr(logger, "logger", logger).addFilter(_says_nothing_of_signing)
        seconds = min(self.timeout, 60)
        try:
            self.client = Client(file, seconds)
        except TimeoutError:
            raise ClusterError(f"the controller did not answer within {seconds:g} s") from None

    def _note_places(self) -> None:
        """Write where the engines are, and check that engine id = rank."""
        found = answers(lambda: self.client[:].apply_async(_where_am_i), self.timeout)
        for engine_id, (rank, size, _, _) in zip(self.client.ids, found, strict=True):
            if (engine_id, size) != (rank, self.n):
                raise ClusterError(
                    f"engine {engine_id} is rank {rank} of {size}, expected rank {engine_id} of "
                    f"{self.n}: {mpi_launcher.advice(self._profile.launcher)}"
                )
        self._record.places = [
            [host, registry.process(pid) or [pid, 0.0], self.client.uuids[rank]]
            for rank, _, host, pid in found
        ]
        self._record.save()
        self._activate()

    def connect(self) -> int:
        """Connect to a running cluster; returns how many of its engines are gone."""
        record = self._record
        self.joined = True
        atexit.register(self._at_exit)
        if record.keep is not None:
            self._lease = Lease(record.path)
        self._connect_and_hear()
        return len({uuid for _, _, uuid in record.places} - set(self.client.uuids.values()))

    def _connect_and_hear(self) -> None:
        """Wait until what engines print arrives here; only an idle engine can be asked for it."""
        self._connect()
        self._activate()
        doing = self.cells.ask(self.client.ids, 1.0)
        for rank in [rank for rank, each in doing.items() if each.state == "idle"][:1]:
            self.client.wait_for_first_output(rank)

    def follow(self, record: Record) -> bool:
        """Whether `record` is of this cluster; connects again if another notebook restarted it."""
        if record.key != self._record.key:
            return False
        if record.controller != self._record.controller:
            self.client.close()
            self._record = record
            self._connect_and_hear()
        return True

    def _activate(self) -> None:
        """Make %%px run on this cluster, whose engines are all connected."""
        here = socket.gethostname()
        self.places = [
            (host, registry.find(named) if host == here else None, int(named[0]), uuid)
            for host, named, uuid in self._record.places
        ]
        self.cells.attach(self._record)
        magics.activate(self)

    def status(self) -> list[Engine]:
        """All engines; it sends them no message, because a busy one could not answer."""
        known = set(self.client.uuids.values()) if self.client is not None else set()
        return [
            Engine(rank, host, pid, lives(process) if process is not None else uuid in known)
            for rank, (host, process, pid, uuid) in enumerate(self.places)
        ]

    def __getitem__(self, key: Any) -> Any:
        """c["x"]: a list by rank; c[0], c[1:3], c[[0, 2]]: some `Ranks`, for c[0]["x"]."""
        if isinstance(key, str) or is_names(key):
            return super().__getitem__(key)
        return selected(self, key)

    def execute(
        self, code: str, ranks: Sequence[int] | None = None, timeout: float | None = None
    ) -> None:
        """As `Ranks.execute`; `ranks` are those that run the cell, None: all."""
        (super() if ranks is None else Ranks(self, ranks)).execute(code, timeout)

    def __reduce__(self):
        raise TypeError("it belongs to its notebook")

    def output(self, rank: int) -> str:
        """All that a rank has printed in its last cell, of which %%px shows a part if it is long.

        What is beyond two million characters is dropped, from the middle.
        """
        if rank not in range(self.n):
            raise ValueError(f"rank must be from 0 to {self.n - 1}, got {rank!r}")
        cell = self.cells.now.get(rank)
        return "" if cell is None else cell.output.text(rank)

    @short_tracebacks
    def restart(self, imports: bool = False) -> None:
        """Replace the engines by new ones without variables, whatever state they are in.

        In a batch job, the new engines run in the same job, which keeps its nodes. Other notebooks
        that have joined the cluster must `join` it again.

        Args:
            imports: Run the import statements of all cells that succeeded so far again (and
                `os.chdir("...")`, `sys.path.insert(0, "...")` and `append`, which they may need).
        """
        began = time.monotonic()
        # The lease watcher and the job stay.
        record = self._record = self._record.now() or self._record
        if self.client is not None:
            self.client.close()
        record.starter = registry.process(os.getpid())
        registry.end_process(record.engines)
        registry.end_process(record.controller)
        record.engines, record.controller, record.places = [], [], []
        self.bring_up()
        remember(self)
        if imports:
            self.execute(self.cells.imports())
        kept = (
            "imports were run again, other variables are gone" if imports else "variables are gone"
        )
        print(f"{counted(self.n, 'new engine')} after {time.monotonic() - began:.0f} s; {kept}")

    @short_tracebacks
    def stop(self) -> None:
        """End the engines and the controller, for all clients, and remove their files.

        Does nothing if that has been done.
        """
        gone = self._record.now() is None
        self.end()
        print(
            f"{self.name} was stopped before"
            if gone
            else f"stopped {counted(self.n, 'engine')} of {self.name}"
        )

    def end(self) -> None:
        """What `stop` does, without its line."""
        self._ends = True
        self.disconnect()
        for named in (self._record.engines, self._record.controller):  # perhaps not saved yet
            registry.end_process(named)
        if (record := self._record.now()) is not None:
            registry.end(record)
        processes.collect()

    @short_tracebacks
    def leave(self) -> None:
        """Disconnect and leave the cluster running, for `join` from elsewhere.

        Raises:
            ClusterError: If it was started here without `keep`, so that it ends with this kernel.
        """
        if not self.joined and self._record.keep is None:
            raise ClusterError(
                "this cluster ends with its kernel: leave() needs one started with keep=SECONDS"
            )
        self.disconnect()
        print(f"left {self.name}, which keeps running; cluster.join({self.name!r}) joins it again")

    def _at_exit(self) -> None:
        if self.joined or self._record.keep is not None:
            self.disconnect()
        else:
            self.end()

    def disconnect(self) -> None:
        """Close the connection; the engines are left as they are."""
        if running() is self:
            remember(None)
        atexit.unregister(self._at_exit)
        self.cells.detach()
        if self.client is not None:
            self.client.close()
        if self._lease is not None:
            self._lease.release()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __repr__(self) -> str:
        return repr(view.Table(self))

    def _ipython_display_(self) -> None:
        view.show(self)


def _says_nothing_of_signing(message: logging.LogRecord) -> bool:
    """Drop ipyparallel's warning that encrypted connections are not signed as well."""
    return "Message signing is disabled" not in message.getMessage()


def running() -> Cluster | None:
    return _running


def remember(cluster: Cluster | None) -> None:
    global _running
    _running = cluster
