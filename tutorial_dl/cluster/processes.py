"""The processes of a cluster on this machine: controller, keeper, and mpiexec with its engines.

Each runs as the child of a guard (launch/guard.py), which ends it when a process that it
watches ends. The commands, and what the processes find in their environment, are made here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from numba_kernels import launch

from . import lease, registry
from .profile import Profile

# A cluster on one node needs no other: what its libraries listen on is the loopback interface.
LOOPBACK = {
    "UCX_NET_DEVICES": "lo",
    "FI_TCP_IFACE": "lo",
    "FI_SOCKETS_IFACE": "lo",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "PRTE_MCA_prte_if_include": "lo",
    "PMIX_MCA_ptl_tcp_if_include": "lo",
}
OF_A_BATCH_SYSTEM = re.compile(r"(SLURM|PBS|LSB)_.*")


class Guarded:
    """A command under a guard, with a log. `named` is the guard, as the registry writes it."""

    def __init__(
        self,
        command: Sequence[str],
        watch: Sequence[int],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        grace: float = 5.0,
        remove: Path | None = None,
        umask: int = -1,
    ):
        self.log = log
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
            self._process = subprocess.Popen(
                launch.guarded(command, *watch, grace=grace, remove=remove),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # a Ctrl-C in the terminal is not for them
                umask=umask,
            )
        self.named = registry.process(self._process.pid)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def tail(self) -> list[str]:
        """The last lines of the log."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace").splitlines()[-15:]
        return []


# Commands --------------------------------------------------------------------------------------


def controller(run: Path, profile: Profile) -> list[str]:
    """ipyparallel's controller, which writes its connection files into `run`/security."""
    address = profile.address()
    return [
        *(sys.executable, "-m", "ipyparallel.controller", f"--profile-dir={run}"),
        *(f"--ip={address}", f"--location={address}"),
        f"--IPController.enable_curve={profile.encrypted}",
        # An engine counts as registered at the next heartbeat after it came up, by default up to
        # 3.5 s later. Half a second instead; and as patient as before with engines that are busy.
        *("--HeartMonitor.period=500", "--HeartMonitor.max_heartmonitor_misses=70"),
        # Two processes instead of nine, and 50 MB of memory instead of 80.
        "--IPController.use_threads=True",
    ]


def connection_file(run: Path, who: str) -> Path:
    """Where the controller says how `who`, "client" or "engine", finds it."""
    return run / "security" / f"ipcontroller-{who}.json"


def engine(run: Path) -> list[str]:
    """An engine of ipyparallel, which takes its MPI rank for its id."""
    return [
        *(sys.executable, "-m", "ipyparallel.engine", "--mpi", f"--profile-dir={run}"),
        f"--file={connection_file(run, 'engine')}",
        "--timeout=30",  # seconds for the controller to answer; 5 are few on a loaded machine
    ]


def keeper(folder: Path, seconds: float) -> list[str]:
    return [sys.executable, "-I", "-S", lease.__file__, str(folder), str(seconds)]


def local_mpiexec() -> str:
    """mpiexec for ranks of this node alone.

    MPICH's usual one listens on all interfaces, for its helpers on other nodes. `mpiexec.gforker`
    beside it knows this node only, and listens nowhere. What MPIEXEC names is taken as it is.
    """
    found = launch.find_mpiexec()
    alone = Path(found).with_name("mpiexec.gforker")
    return str(alone) if alone.exists() and "MPIEXEC" not in os.environ else found


def ranks_here(n: int) -> tuple[list[str], dict[str, str]]:
    """What starts `n` ranks on this machine, and their environment."""
    env = {
        name: value
        # An mpiexec that finds itself in a batch job takes the job's nodes, not this one.
        for name, value in launch.rank_environment(n).items()
        if not OF_A_BATCH_SYSTEM.fullmatch(name)
    }
    env = {**LOOPBACK, **env, "MPI_LOCALNRANKS": str(n)}  # gforker does not say how many there are
    mpiexec = local_mpiexec()
    # Linux shares a busy machine between sessions, not processes: all ranks in one session, as
    # gforker leaves them, got half of what they get with one session each, as usual.
    own = ["setsid"] if mpiexec.endswith(".gforker") and shutil.which("setsid") else []
    return [mpiexec, "-n", str(n), *own], env


def ranks_in_allocation(profile: Profile, n: int) -> tuple[list[str], dict[str, str]]:
    """What starts `n` ranks on the nodes of the batch job we are in, and their environment."""
    command = shlex.split(os.path.expandvars(profile.fill(profile.launcher, n)))
    env = launch.rank_environment(n)
    env.update({name: str(profile.cores_per_rank) for name in launch.THREAD_VARIABLES})
    # The step that the notebook runs in was bound to its cores; the new one is not part of it.
    return command, {k: v for k, v in env.items() if not k.startswith("SLURM_CPU_BIND")}
