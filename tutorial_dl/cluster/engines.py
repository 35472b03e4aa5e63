"""Start, restart and stop an MPI cluster of engines, and leave nothing of it behind.

Three kinds of processes belong to a cluster: the controller, which passes messages between the
notebook and the engines; mpiexec; and the engines, which are the ranks mpiexec starts. The
notebook's kernel is the only one a learner ever ends, often roughly. So the controller and mpiexec
each run under a guard (numba_kernels/guard.py) that ends them when the kernel is gone, however it
went; the engines' guard watches the controller as well.

    kernel --- guard --- controller          (removes the cluster's folder at the end)
          \\-- guard --- mpiexec --- engines  (watches kernel and controller)
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ipyparallel as ipp
import psutil
from ipyparallel.cluster.launcher import ipcontroller_cmd_argv
from IPython import get_ipython
from IPython.paths import get_ipython_dir

from numba_kernels import launch

CONTROLLER = [
    # An engine counts as registered at the controller's next heartbeat after it came up, by default
    # up to 3.5 s later. Half a second instead; and as patient as before with engines that are busy.
    "--HeartMonitor.period=500",
    "--HeartMonitor.max_heartmonitor_misses=70",
    # Two processes instead of nine, and 50 MB of memory instead of 80.
    "--IPController.use_threads=True",
]

_running: Cluster | None = None  # one cluster a kernel, as %%px talks to one


class ClusterError(RuntimeError):
    """The cluster could not be started; the message ends with what its processes wrote last."""


class Engine(NamedTuple):
    """One engine: its id, which is its MPI rank, where it runs, and whether it still does."""

    rank: int
    host: str
    pid: int
    alive: bool


def _where_am_i() -> tuple[int, int, str, int]:
    """Runs on an engine: its rank, the size of its MPI world, its host and pid."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, socket.gethostname(), os.getpid()


class Cluster:
    """A running cluster; `start` makes one.

    Attributes:
        client: the ipyparallel Client. client[:] is all engines, client[2] the engine of rank 2.
        n: engines.
        timeout: seconds that `restart` waits for the engines, as `start` does.
    """

    def __init__(self, n: int, timeout: float = 60.0):
        self.n, self.timeout = launch.check_ranks(n), timeout
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}: a number of seconds above 0 is right")
        if launch.under_mpi():
            raise launch.LaunchError(
                "this process is itself a rank", "start engines outside mpiexec"
            )
        self.client: ipp.Client | None = None
        self._mpiexec = launch.find_mpiexec()
        self._folder: Path | None = None
        self._places: list[tuple[str, psutil.Process | None, int, str]] = []
        self._start()

    # Starting ----------------------------------------------------------------------------------

    def _start(self) -> None:
        ipython_dir = Path(get_ipython_dir())
        ipython_dir.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="profile_tutorial_dl_", dir=ipython_dir))
        self._cluster = ipp.Cluster(
            engines="mpi",
            n=self.n,
            cluster_id="",
            profile_dir=str(self._folder),
            load_profile=False,
            controller_ip="127.0.0.1",  # all processes are on this node: no other may connect
            controller_args=CONTROLLER,
            log_level=logging.CRITICAL,  # what it has to say is in the errors below
            shutdown_atexit=False,  # `stop` is registered instead, and the guards are there
        )
        atexit.register(self.stop)
        try:
            self._cluster.start_controller_sync(
                controller_cmd=launch.guarded(
                    list(ipcontroller_cmd_argv), os.getpid(), remove=self._folder
                ),
                stop_seconds_until_kill=15,
            )
            self._within(self.timeout, self._listening)
            self.client = self._cluster.connect_client_sync()
            self._start_engines()
        except BaseException:  # Ctrl-C included
            self.stop()
            raise

    def _listening(self) -> bool:
        """Has the controller written where it listens?"""
        return all(Path(f).exists() for f in self._cluster.controller.connection_files.values())

    def _start_engines(self) -> None:
        """Start mpiexec, wait for its engines, and make sure that engine id = rank."""
        before = set(self.client._engines.values())  # UUIDs: ids are used again
        environment = launch.rank_environment(self.n)
        # A launcher can only add variables; those of an outer run are taken away by env.
        drop = [word for name in os.environ.keys() - environment for word in ("-u", name)]
        command = [*(["env", *drop] if drop else []), self._mpiexec]
        self._cluster.start_engines_sync(
            self.n,
            mpi_cmd=launch.guarded(
                command, os.getpid(), self._cluster.controller.process.pid, grace=2.0
            ),
            environment={k: v for k, v in environment.items() if os.environ.get(k) != v},
            stop_seconds_until_kill=15,
        )

        def registered() -> bool:
            new = {i for i, uuid in self.client._engines.items() if uuid not in before}
            return len(new) == self.n

        self._within(self.timeout, registered)
        view = self.client[:]
        found = view.apply_async(_where_am_i).get(timeout=self.timeout)
        for engine_id, (rank, size, _, _) in zip(self.client.ids, found, strict=True):
            if (engine_id, size) != (rank, self.n):
                raise ClusterError(
                    f"engine {engine_id} is rank {rank} of {size}, expected rank {engine_id} of "
                    f"{self.n}: run doctor, mpiexec and mpi4py may not belong together"
                )
        self._places = [
            (
                host,
                psutil.Process(pid) if host == socket.gethostname() else None,
                pid,
                self.client._engines[rank],
            )
            for rank, _, host, pid in found
        ]
        view.block = True
        if get_ipython() is not None:
            view.activate()  # %px, %%px

    def _within(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Wait until `ready`; ClusterError after `seconds`, or if one of our processes ends."""
        deadline = time.monotonic() + seconds
        while not ready():
            launchers = [self._cluster.controller, *self._cluster.engines.values()]
            dead = [each for each in launchers if not _lives(each.process)]
            if dead or time.monotonic() > deadline:
                what = (dead or launchers)[-1]
                name = "controller" if what is self._cluster.controller else f"{self.n} engines"
                problem = "ended at once" if dead else f"did not come up within {seconds:g} s"
                log = Path(what.output_file)
                tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
                raise ClusterError("\n  ".join([f"the {name} {problem}; the log ends with", *tail]))
            time.sleep(0.02)

    # What a notebook uses ----------------------------------------------------------------------

    def status(self) -> list[Engine]:
        """Every engine's rank, host and pid, and whether it is alive. Asks no engine: a busy one
        could not answer."""
        known = set(self.client._engines.values()) if self.client is not None else set()
        return [
            Engine(rank, host, pid, _lives(process) if process is not None else uuid in known)
            for rank, (host, process, pid, uuid) in enumerate(self._places)
        ]

    def restart(self) -> None:
        """New engines, with nothing imported and no variables; %%px goes to them."""
        self.stop()
        atexit.unregister(self.stop)
        self._start()
        _remember(self)

    def stop(self) -> None:
        """End engines and controller and remove their files; nothing if that has been done."""
        global _running
        if _running is self:
            _running = None
        atexit.unregister(self.stop)
        folder, self._folder = self._folder, None
        if folder is None:
            return
        if self.client is not None:
            self.client.close()
        for stop in (self._cluster.stop_engines_sync, self._cluster.stop_controller_sync):
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
                stop()
        shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        alive = sum(engine.alive for engine in self.status())
        return f"<Cluster: {alive} of {self.n} engines alive>"


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start(n: int = 4, timeout: float = 60.0) -> Cluster:
    """Start `n` engines that are the ranks of one MPI world, and make %%px talk to them.

    Engine i is MPI rank i. Each gets its share of the cores as threads. Engines run in the
    notebook's folder, so modules beside the notebook can be imported in %%px cells. A cluster that
    this kernel started before is stopped first: a cell with `start` can be run again.

    Args:
        n: engines, 1 to 1024. There may be more than cores.
        timeout: seconds to wait for the engines (raise it where a queue lies in between).

    Raises:
        ValueError: `n` or `timeout` makes no sense.
        LaunchError: no mpiexec that fits mpi4py's MPI; `python -m tutorial_dl doctor` says more.
        ClusterError: the engines did not come up, with the end of their log.
    """
    launch.check_ranks(n)
    if _running is not None:
        print(f"stopping the cluster of {_running.n} engines that was running")
        _running.stop()
    cluster = Cluster(n, timeout)
    _remember(cluster)
    threads = launch.threads_per_rank(n)
    print(
        f"{n} engine{'s'[: n > 1]} = MPI rank{'s 0 to ' + str(n - 1) if n > 1 else ' 0'} "
        f"({launch.mpi_library().name}), {threads} thread{'s'[: threads > 1]} each; "
        "%%px runs on all of them"
    )
    return cluster


def _remember(cluster: Cluster) -> None:
    global _running
    _running = cluster
