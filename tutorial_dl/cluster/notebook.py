"""`start` a cluster from a notebook, or `join` one that another notebook has started."""

import contextlib
import os
import re

import ipyparallel as ipp
import psutil

from numba_kernels import environment, launch
from numba_kernels.environment import MOST_PER_CORE

from ..words import counted
from . import engines, magics, registry
from .engines import Cluster
from .profile import Profile, load
from .registry import ClusterError, Record, short_tracebacks

ENGINE = 0.1e9  # bytes of an engine with numpy and Numba: 82 to 89 MB of its own, a part of 50 MB
TENSORFLOW = 0.5e9  # bytes that TensorFlow adds to it: 0.3 GB, a part of 0.5 GB, and a model

GB = 1e9
ON_ALL = "%%px runs on all of them"


@short_tracebacks
def start(
    n: int = 4,
    timeout: float | None = None,
    *,
    profile: str | os.PathLike = "local",
    name: str | None = None,
    keep: float | None = None,
    force: bool = False,
) -> Cluster:
    """Start `n` engines that are the ranks of one MPI world, and make %%px run on them.

    Engine i is MPI rank i. Each engine's threads get its share of the cores. Engines run in the
    notebook's folder, so %%px cells can import modules beside the notebook. A cluster that this
    kernel started before is stopped once the new one is up, so a cell with `start` can be run
    again; if the new one does not start, the old one stays.

    Args:
        n: Number of engines, 1 to 1024; here at most 8 per core, and what memory holds.
        timeout: Seconds to wait for the engines; default: the profile's, or 60, or 600 for a job
            that waits in a queue.
        profile: Where and how they run: "local", another name or a TOML file (docs/clusters.md).
        name: Name for `join`; default: the profile's.
        keep: Seconds that the cluster stays alive without a client, to be joined; default: the
            profile's, or 600 for a submitted job. A local cluster ends with the kernel.
        force: Start as many engines as `n` says, even if they are too many for this machine.

    Returns:
        The running cluster.

    Raises:
        ValueError: If an argument or a key of the profile is invalid.
        LaunchError: If no mpiexec fits mpi4py's MPI; `python -m tutorial_dl doctor` says more.
        ClusterError: If the engines are too many, or did not start; then the message has the end of
            their log.
    """
    n = launch.check_ranks(n)
    of = load(profile)
    timeout = _seconds("timeout", of.patience if timeout is None else timeout)
    keep = of.lease if keep is None else _seconds("keep", keep)
    if launch.under_mpi():
        raise launch.LaunchError("this process is itself a rank", "start engines outside mpiexec")
    if of.kind == "local":
        launch.find_mpiexec()
    of.shape(n)  # raises what is wrong before anything is started
    of.address()
    old = engines.running()
    freed = _memory(old) if old is not None and not old.joined and old.local else 0.0
    if not force:
        check_capacity(n, of, freed)
    if old is not None and not _both_fit(n, of, old):
        _let_go(old)
        old = None
    cluster = _beside(old, n, of, timeout, name, keep)
    threads = launch.threads_per_rank(n) if of.kind == "local" else of.cores_per_rank
    print(
        f"{counted(n, 'engine')} = MPI rank{'s 0 to ' + str(n - 1) if n > 1 else ' 0'} "
        f"({launch.mpi_library().name}), {threads} thread{'s'[: threads > 1]} each; "
        f"{ON_ALL}"
    )
    return cluster


def _beside(
    old: Cluster | None, n: int, of: Profile, timeout: float, name: str | None, keep: float | None
) -> Cluster:
    """Start a cluster, then let go of the old one; if that fails, the old one is as before."""
    takes_name = old is not None and not old.joined and old.name == (name or of.name)
    taken, folder = registry.take_folder(
        None if takes_name else name, old.name if takes_name else of.name
    )
    record = Record(taken, n, str(of.file.resolve()), str(folder), keep=keep)
    record.save()
    cluster = Cluster(record, of, timeout)
    try:
        cluster.bring_up()
    except BaseException:  # Ctrl-C included
        _go_on_with(old)
        raise
    if takes_name:
        record.name = old.name
        record.save()
    engines.remember(cluster)  # first, so that Ctrl-C does not lose it
    _let_go(old)
    return cluster


def _both_fit(n: int, of: Profile, old: Cluster) -> bool:
    """Whether both clusters can run for a while; jobs and their parts are for one cluster."""
    if old.joined:  # it stays anyway
        return True
    if of.kind != "local" or not old.local:
        return of.kind == "local" or old.local
    return free_memory() >= n * ENGINE


def _memory(cluster: Cluster) -> float:
    """Bytes that the cluster's engines have for themselves."""
    total = 0.0
    for _, process, *_ in cluster.places:
        with contextlib.suppress(psutil.Error):
            if process is not None:
                memory = process.memory_info()
                total += memory.rss - getattr(memory, "shared", 0)
    return total


def _go_on_with(cluster: Cluster | None) -> None:
    """Make %%px run on a cluster that another one has not replaced."""
    if cluster is not None and cluster.connected:
        magics.activate(cluster)
        print(f"{cluster.name} of {counted(cluster.n, 'engine')} still runs; %%px runs on it")


@short_tracebacks
def join(name: str | None = None) -> Cluster:
    """Connect to a running cluster, and make %%px run on it.

    The engines are the same, with their variables; cells of several notebooks run one after the
    other. The cluster does not end with this kernel; `stop()` ends it for all clients.

    Args:
        name: Its name; not needed if there is only one cluster.

    Returns:
        The cluster.

    Raises:
        ClusterError: If there is none of that name, or it does not answer.
    """
    record = registry.choose(name)
    if record.state() == "starting":
        raise ClusterError(f"cluster {record.name!r} is still starting: join it when it is up")
    mine = engines.running()
    if mine is not None and mine.follow(record):
        print(f"joined {record.name}: {counted(record.n, 'engine')}; {ON_ALL}")
        return mine
    of = load(record.profile)
    cluster = Cluster(record, of, of.patience)
    try:
        missing = cluster.connect()
    except BaseException as error:
        cluster.disconnect()
        _go_on_with(mine)
        if isinstance(error, (OSError, TimeoutError, ipp.error.TimeoutError)):
            raise ClusterError(f"cluster {record.name!r} does not answer: {error}") from None
        raise
    engines.remember(cluster)
    _let_go(mine)
    if missing:
        print(f"{missing} of {record.n} engines are gone; restart() starts new ones")
    print(f"joined {record.name}: {counted(record.n, 'engine')}; {ON_ALL}")
    return cluster


def _let_go(cluster: Cluster | None) -> None:
    if cluster is None:
        return
    if cluster.joined:
        print(f"leaving the cluster {cluster.name}, which keeps running")
        cluster.disconnect()
    else:
        print(f"stopping the cluster of {counted(cluster.n, 'engine')} that was running")
        cluster.end()


def _seconds(name: str, value: float) -> float:
    """Return `value` if it is a number of seconds above 0; raise ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
    return float(value)


def check_capacity(n: int, of: Profile, freed: float = 0.0) -> None:
    """Raise ClusterError, one line, if `n` engines of this profile are too many.

    The limits of a container or a batch job count: affinity, and the cgroups of this process.

    Args:
        freed: Bytes that the cluster that is replaced will free.
    """
    cores, where = None, ""
    if of.kind == "local":
        cores, where = environment.usable_cores(), "this machine has"
    elif of.kind == "allocation":
        nodes = os.environ.get("SLURM_JOB_CPUS_PER_NODE", "")  # "4(x2),2" for 4, 4, 2
        parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in nodes.split(",")]
        if all(parts):
            cores, where = sum(int(p[1]) * int(p[2] or 1) for p in parts), "the job has"
    free = free_memory() + freed
    if cores is not None and n > MOST_PER_CORE * cores:
        most = f"at most {MOST_PER_CORE * cores} ({MOST_PER_CORE} per core)"
        why = f"{where} {counted(cores, 'core')}, so {most}"
    elif of.kind == "local" and n * ENGINE > free:
        why = f"{max(0.0, free) / GB:.1f} GB of memory are free"
    else:
        return
    raise ClusterError(
        f"{n} engines are too many: {why}; {n} idle engines need {n * ENGINE / GB:.1f} GB, and "
        f"{n * TENSORFLOW / GB:.1f} GB more with TensorFlow; force=True (in a terminal --force) "
        "starts them all the same"
    )


def free_memory() -> float:
    """Bytes that this process and its children may still use, by the machine and its cgroups."""
    free = psutil.virtual_memory().available
    for group in environment.cgroups("memory"):
        for most, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # version 1
        ):
            with contextlib.suppress(OSError, ValueError):  # ValueError for "max": no limit
                limit, taken = (int((group / name).read_text()) for name in (most, used))
                found = re.search(rf"^{cache} (\d+)$", (group / "memory.stat").read_text(), re.M)
                free = min(free, limit - taken + int(found[1] if found else 0))
    return free
