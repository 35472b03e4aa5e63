"""A cluster's processes on this machine: controller, lease watcher, mpiexec with its engines.

Each runs as the child of a guard (launch/guard.py), which ends it when a process that the
guard watches ends. Their commands and environments are made here.
"""

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from numba_kernels import launch
from numba_kernels.launch import ranks

from . import mpi_launcher, registry
from .batch_job import OF_A_JOB
from .profile import Profile

LOADED = "tutorial_dl.cluster.preload"
PRELOAD = "TUTORIAL_DL_PRELOAD"  # the variable that tells it what the profile names
PROGRAM = (sys.executable, "-m", "tutorial_dl.cluster")
PORTS = 24  # those that a controller listens on
WHEN_WRITTEN = 'until [ -s "$0" ]; do sleep 0.02; done; exec "$@"'
BUSY = 35_000  # ms without a heartbeat, after which ipyparallel calls an engine lost


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
        _started.append(
            subprocess.Popen(
                guarded,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # so that Ctrl-C in the terminal does not reach them
                umask=umask,
            )
        )
    return registry.process(_started[-1].pid)


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


def connection_file(run: Path, who: str) -> Path:
    """The controller's connection file for `who`, "client" or "engine"."""
    return run / "security" / f"ipcontroller-{who}.json"


def engine(run: Path) -> list[str]:
    """An engine, which uses its MPI rank as its id."""
    return [
        *(*PROGRAM, "engine", "--mpi", f"--profile-dir={run}"),
        f"--file={connection_file(run, 'engine')}",
        "--timeout=30",  # seconds for the controller to answer; 5 are too few on a loaded machine
    ]


def engines_here(
    n: int, run: Path, profile: Profile
) -> tuple[list[str], dict[str, str], str | None]:
    """The command that starts `n` engines on this machine, their environment, a folder to remove.

    It may run before the controller has written its connection files, for which it waits. Where
    possible, the engines are forked from one process, which imports meanwhile what they need.
    """
    start, env = ranks_here(n)
    file = str(connection_file(run, "engine"))  # the last one that the controller writes
    waiting = ["sh", "-c", WHEN_WRITTEN, file]
    folder = ranks.fork_folder() if ranks.can_fork(env) else None
    if folder is None:
        return [*waiting, *start, *engine(run)], env, None
    env[PRELOAD] = " ".join(profile.preload)
    command = [*waiting, *start, *ranks.as_fork(folder, engine(run), start[0])]
    return ranks.with_fork_server(LOADED, folder, command), env, folder


def ranks_here(n: int) -> tuple[list[str], dict[str, str]]:
    """The command that starts `n` ranks on this machine, and their environment."""
    env = launch.rank_environment(n, here=True)
    env["MPI_LOCALNRANKS"] = str(n)  # gforker sets none
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
    return launch.mpiexec_command(n, own, mpiexec=mpiexec), env


def ranks_in_allocation(profile: Profile, n: int) -> tuple[list[str], dict[str, str]]:
    """The command that starts `n` ranks on the nodes of our batch job, and their environment."""
    command = shlex.split(os.path.expandvars(profile.fill(profile.launcher, n)))
    env = launch.rank_environment(n)
    env.update({name: str(profile.cores_per_rank) for name in launch.THREAD_VARIABLES})
    # The notebook's job step is bound to its cores; the new step must not inherit that.
    env = {k: v for k, v in env.items() if not k.startswith("SLURM_CPU_BIND")}
    return mpi_launcher.command(command), env
