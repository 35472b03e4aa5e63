"""`start` a cluster from a notebook, or `join` one that another notebook has started."""

import os

import ipyparallel as ipp

from numba_kernels import launch

from . import engines, registry
from .engines import Cluster
from .profile import load
from .registry import ClusterError, Record


def start(
    n: int = 4,
    timeout: float | None = None,
    *,
    profile: str | os.PathLike = "local",
    name: str | None = None,
    keep: float | None = None,
) -> Cluster:
    """Start `n` engines that are the ranks of one MPI world, and make %%px run on them.

    Engine i is MPI rank i. Each engine's threads get its share of the cores. Engines run in the
    notebook's folder, so %%px cells can import modules beside the notebook. A cluster that this
    kernel started before is stopped first, so a cell with `start` can be run again.

    Args:
        n: Number of engines, 1 to 1024. There may be more engines than cores.
        timeout: Seconds to wait for the engines; default: the profile's, or 60, or 600 for a job
            that waits in a queue.
        profile: Where and how they run: "local", another name or a TOML file (docs/clusters.md).
        name: Name for `join`; default: the profile's.
        keep: Seconds that the cluster stays alive without a client, to be joined; default: the
            profile's, or 600 for a submitted job. A local cluster ends with the kernel.

    Returns:
        The running cluster.

    Raises:
        ValueError: If an argument or a key of the profile is invalid.
        LaunchError: If no mpiexec fits mpi4py's MPI; `python -m tutorial_dl doctor` says more.
        ClusterError: If the engines did not start; the message has the end of their log.
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
    _let_go(engines.running())
    taken, folder = registry.take_folder(name, of.name)
    record = Record(taken, n, str(of.file.resolve()), str(folder), keep=keep)
    record.save()
    cluster = Cluster(record, of, timeout)
    cluster.bring_up()
    engines.remember(cluster)
    threads = launch.threads_per_rank(n) if of.kind == "local" else of.cores_per_rank
    print(
        f"{n} engine{'s'[: n > 1]} = MPI rank{'s 0 to ' + str(n - 1) if n > 1 else ' 0'} "
        f"({launch.mpi_library().name}), {threads} thread{'s'[: threads > 1]} each; "
        "%%px runs on all of them"
    )
    return cluster


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
        return mine
    _let_go(mine)
    of = load(record.profile)
    cluster = Cluster(record, of, of.patience)
    try:
        missing = cluster.connect()
    except BaseException as error:
        cluster.leave()
        if isinstance(error, (OSError, TimeoutError, ipp.error.TimeoutError)):
            raise ClusterError(f"cluster {record.name!r} does not answer: {error}") from None
        raise
    engines.remember(cluster)
    if missing:
        print(f"{missing} of {record.n} engines are gone; restart() starts new ones")
    print(f"joined {record.name}: {record.n} engines; %%px runs on all of them")
    return cluster


def _let_go(cluster: Cluster | None) -> None:
    if cluster is None:
        return
    if cluster.joined:
        print(f"leaving the cluster {cluster.name}, which keeps running")
        cluster.leave()
    else:
        print(f"stopping the cluster of {cluster.n} engines that was running")
        cluster.stop()


def _seconds(name: str, value: float) -> float:
    """Return `value` if it is a number of seconds above 0; raise ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
    return float(value)
