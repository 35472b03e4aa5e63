"""A cluster's processes on this machine: controller, lease watcher, mpiexec with its engines.

Each runs as the child of a guard (launch/guard.py), which ends it when a process that the guard
watches ends. `Startup` starts them, shows progress, and reports one that ends early or is late.
"""

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from IPython import get_ipython

from numba_kernels import launch
from numba_kernels.launch import ranks

from . import lease, mpi_launcher, registry, submit
from .batch_job import OF_A_JOB, Job, last_lines
from .profile import Profile
from .registry import ClusterError, Record

LOADED = "tutorial_dl.cluster.preload"
PRELOAD = "TUTORIAL_DL_PRELOAD"  # the variable that tells it what the profile names
PROGRAM = (sys.executable, "-m", "tutorial_dl.cluster")
PORTS = 24  # those that a controller listens on
WHEN_WRITTEN = 'until [ -s "$0" ]; do sleep 0.02; done; exec "$@"'
BUSY = 35_000  # ms without a heartbeat, after which ipyparallel calls an engine lost
ASK_EVERY = 3.0  # seconds between two queries, so as not to load the batch system


@contextlib.contextmanager
def reserved_ports() -> Iterator[list[int]]:
    """Ports that nobody else is given until the controller listens on them.

    Left to itself, the controller chooses free ports, and listens on them later. If the port of its
    direct queue is somebody else's by then, that queue's thread ends without a word, and the
    engines never answer. That happens where many clusters start at the same time. A port that a
    socket is bound to is not chosen for any other program, and ZeroMQ may listen on it (both set
    SO_REUSEADDR, and this one does not listen).
    """
    with contextlib.ExitStack() as sockets:
        ports = []
        for _ in range(PORTS):
            held = sockets.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("", 0))
            ports.append(held.getsockname()[1])
        yield ports


_started: list[subprocess.Popen] = []  # guards that may have to be collected


def start_guarded(
    command: Sequence[str],
    watch: Sequence[Sequence[float]],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    umask: int = -1,
    **of_guard,
) -> list[float]:
    """Start a command under a guard, with a log; returns the guard's entry for the registry.

    `watch`: the entries of the processes that it watches.
    """
    collect()
    guarded = launch.guarded(command, *(int(pid) for pid, _ in watch), **of_guard)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
        # In a session of its own, so that Ctrl-C in the terminal does not reach it
        guard = subprocess.Popen(
            guarded, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env,
            start_new_session=True, umask=umask,
        )  # fmt: skip
    _started.append(guard)
    return registry.process(guard.pid)


def collect() -> None:
    """Collect the guards that have ended, which would stay as zombies otherwise."""
    _started[:] = [process for process in _started if process.poll() is None]


def controller(run: Path, profile: Profile, ports: Sequence[int]) -> list[str]:
    """ipyparallel's controller, which writes its connection files into `run`/security."""
    address = profile.address()
    # An engine is registered at the second heartbeat after its start. By default one is sent every
    # 3 s; more frequent ones cost processor time, and there may be thousands of engines elsewhere.
    beat = 200 if profile.kind == "local" else 500  # ms
    misses = BUSY // beat
    return [
        *(*PROGRAM, "controller", f"--profile-dir={run}"),
        *(f"--ip={address}", f"--location={address}"),
        f"--IPController.enable_curve={profile.encrypt}",
        f"--ports={','.join(map(str, ports))}",
        *(f"--HeartMonitor.period={beat}", f"--HeartMonitor.max_heartmonitor_misses={misses}"),
        # 2 processes instead of 9, and 50 MB of memory instead of 80.
        "--IPController.use_threads=True",
    ]


def engine(record: Record) -> list[str]:
    """An engine, which uses its MPI rank as its id."""
    return [
        *(*PROGRAM, "engine", "--mpi", f"--profile-dir={record.run}"),
        f"--file={record.connection_file('engine')}",
        "--timeout=30",  # seconds for the controller to answer; 5 are too few on a loaded machine
    ]


def engines_here(record: Record, profile: Profile) -> tuple[list[str], dict[str, str], str | None]:
    """The command that starts engines on this machine, their environment, a folder to remove.

    It may run before the controller has written its connection files, for which it waits. Where
    possible, the engines are forked from one process, which imports meanwhile what they need.
    """
    env = launch.rank_environment(record.n, here=True)
    env["MPI_LOCALNRANKS"] = str(record.n)  # gforker sets none
    # In a batch job, mpiexec would use the job's nodes instead of this one.
    env = {name: value for name, value in env.items() if not OF_A_JOB.fullmatch(name)}
    # MPICH's usual mpiexec listens on all interfaces, for its proxies on other nodes. The
    # `mpiexec.gforker` beside it supports this node only and does not listen.
    mpiexec = launch.find_mpiexec()
    alone = Path(mpiexec).with_name("mpiexec.gforker")
    if alone.exists() and "MPIEXEC" not in os.environ:  # a path that is given is used as it is
        mpiexec = str(alone)
    # Linux shares a busy machine between sessions, not processes: all ranks in one session, as
    # gforker starts them, got half the processor time that they get with one session per rank.
    own = ["setsid"] if mpiexec.endswith(".gforker") and shutil.which("setsid") else []
    file = str(record.connection_file("engine"))  # the last one that the controller writes
    start = launch.mpiexec_command(record.n, own, mpiexec=mpiexec)
    start = ["sh", "-c", WHEN_WRITTEN, file, *start]
    folder = ranks.fork_folder() if ranks.can_fork(env) else None
    if folder is None:
        return [*start, *engine(record)], env, None
    env[PRELOAD] = " ".join(profile.preload)
    start += ranks.as_fork(folder, engine(record), mpiexec)
    return ranks.with_fork_server(LOADED, folder, start), env, folder


def engines_in_allocation(record: Record, profile: Profile) -> tuple[list[str], dict[str, str]]:
    """The command that starts engines on the nodes of our batch job, and their environment."""
    command = shlex.split(os.path.expandvars(profile.fill(profile.launcher, record.n)))
    env = launch.rank_environment(record.n)
    env.update({name: str(profile.cores_per_rank) for name in launch.THREAD_VARIABLES})
    # The notebook's job step is bound to its cores; the new step must not inherit that.
    env = {k: v for k, v in env.items() if not k.startswith("SLURM_CPU_BIND")}
    return [*mpi_launcher.command(command), *engine(record)], env


class Progress:
    """Shows a text and the elapsed seconds on one line, which `clear` removes again.

    It shows nothing if output goes to a file, where a line can't be overwritten.
    """

    def __init__(self) -> None:
        self._began, self._line = time.monotonic(), ""
        shell = type(get_ipython()).__name__
        self._shows = shell == "ZMQInteractiveShell" or getattr(sys.stdout, "isatty", bool)()

    def update(self, text: str) -> None:
        line = f"{text}, {time.monotonic() - self._began:.0f} s"
        if self._shows and line != self._line.rstrip():
            self._line = line.ljust(len(self._line))
            print("\r" + self._line, end="", flush=True)

    def clear(self) -> None:
        if self._line:
            print("\r" + " " * len(self._line) + "\r", end="", flush=True)


class Startup:
    """Starts the parts of a cluster, which it names in the cluster's `record`."""

    def __init__(self, record: Record, of: Profile, timeout: float):
        self.record, self.of, self.timeout = record, of, timeout
        self.job: Job | None = None
        self.progress = Progress()

    def start_watcher(self) -> None:
        """Start the lease watcher, which the guards of the other parts then watch."""
        record = self.record
        words = [sys.executable, "-I", "-S", lease.__file__, str(record.path), str(record.keep)]
        log = record.path / "watcher.log"
        record.watcher = start_guarded(words, (), log, grace=30, remove=record.path)
        record.watch = [record.watcher]
        record.save()

    def start_controller(self, ports: Sequence[int]) -> None:
        """Start the controller on these `ports`."""
        record, run = self.record, self.record.run
        run.mkdir(mode=0o700, exist_ok=True)
        for who in ("client", "engine"):  # left by a controller whose guard was killed, too
            record.connection_file(who).unlink(missing_ok=True)
        record.controller = start_guarded(
            controller(run, self.of, ports),
            record.watch,
            run / "controller.log",
            remove=record.path if record.keep is None else run,
            umask=0o077,
        )
        record.save()

    def wait_for_controller(self) -> None:
        """Wait for its connection files."""
        files = [self.record.connection_file(who) for who in ("client", "engine")]
        show = partial(self.progress.update, "starting the controller")
        self._wait("the controller", lambda: all(file.exists() for file in files), show)

    def start_engines(self) -> None:
        """Start mpiexec or a job: after the controller, and if not local, after its files."""
        record, of = self.record, self.of
        if of.kind == "submit":
            self.job = submit.engines(record, of, engine(record))
            return
        if of.kind == "local":
            command, env, folder = engines_here(record, of)
        else:
            (command, env), folder = engines_in_allocation(record, of), None
        watch, log = [*record.watch, record.controller], record.run / "engines.log"
        try:
            record.engines = start_guarded(command, watch, log, env=env, grace=1.0, remove=folder)
        except BaseException as error:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError) and not record.run.exists():
                # The controller has ended, and its guard has removed the folder.
                raise ClusterError("the controller ended at once") from error
            raise
        record.save()

    def wait_for_engines(self, client) -> None:
        """Wait until all engines are registered."""
        state, ask_at, n = "submitted", time.monotonic() + 0.5, self.record.n

        def show():
            nonlocal state, ask_at
            connected = len(client.ids)
            if self.job is not None and time.monotonic() > ask_at:
                state, ask_at = self._state_of_job(), time.monotonic() + ASK_EVERY
            waiting = f"{self.job} is {state}, " if self.job and not connected else ""
            self.progress.update(f"{waiting}{connected} of {n} engines")
            return f": {self.job} was {state}" if self.job else ""

        self._wait(f"the {n} engines", lambda: len(client.ids) == n, show)

    def _wait(self, what: str, ready: Callable[[], bool], show: Callable[[], str | None]) -> None:
        """Wait until `ready()`; raises ClusterError after `timeout`, or if a part ends.

        `show` shows how far it is, and returns what an error adds.
        """
        deadline, run = time.monotonic() + self.timeout, self.record.run
        engines, log = self.record.engines, run / "engines.log"
        while not ready():
            more = show() or ""
            if not registry.alive(self.record.controller):
                raise _ended("the controller ended at once", last_lines(run / "controller.log"))
            if engines and not registry.alive(engines):
                raise _ended(f"the {self.record.n} engines ended at once", last_lines(log))
            if time.monotonic() > deadline:
                log = run / "controller.log" if "controller" in what else log
                tail = last_lines(log) if self.job is None else self.job.tail()
                raise _ended(f"{what} did not come up within {self.timeout:g} s{more}", tail)
            time.sleep(0.02)

    def _state_of_job(self) -> str:
        """The state of the job; raises ClusterError if it has ended or can never run."""
        state = self.job.state()
        if state is None:
            why = self.job.why_ended() or f"{self.job} ended"
            raise _ended(f"{why} before its engines were up", self.job.tail())
        if self.job.can_never_run(state):
            ask = "ask for fewer ranks, less time or another queue in the profile"
            raise ClusterError(f"{self.job} can never run, it is {state}: {ask}")
        return state


def _ended(what: str, tail: list[str]) -> ClusterError:
    """The error of a part that has ended, or is late, with the end of its log."""
    if any(map(mpi_launcher.REFUSED.search, tail)):
        what, tail = f"the MPI library refuses the launcher: {mpi_launcher.REMEDY}", []
    log = ["; the log ends with", *tail] if tail else [""]
    return ClusterError(what + "\n  ".join(log))
