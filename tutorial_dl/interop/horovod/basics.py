"""Start and stop, and each rank's place: init, shutdown, rank, size and related functions."""

import numpy as np

from numba_kernels import launch

from . import process_sets
from .process_sets import ProcessSet, global_process_set
from .wire import lock

__all__ = [
    "add_process_set", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "gloo_built", "gloo_enabled", "init", "is_homogeneous", "is_initialized", "local_rank",
    "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank",
    "remove_process_set", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline",
]  # fmt: skip


class _Here:
    team = None  # before init() and after shutdown()
    nodes: tuple[tuple[int, ...], ...] = ()  # the ranks of each node
    node: tuple[int, ...] = ()  # the ranks of this node


def init(comm=None, process_sets: list[ProcessSet] | str | None = None) -> None:
    """Initialise; all ranks call it before anything else. A second call does nothing.

    Args:
        comm: An mpi4py communicator, or a list of ranks; each rank not in the list continues as a
            job of one rank. By default, all processes that mpiexec started (one without mpiexec).
        process_sets: Process sets to make at once, as by `add_process_set`. "dynamic" is accepted
            as in Horovod; here process sets can always be added later.
    """
    if _Here.team is not None:
        return
    from mpi4py import MPI

    from numba_kernels.team.team import Team

    ranks = comm if isinstance(comm, (list, tuple)) and comm else None
    team = Team(comm if comm and ranks is None else MPI.COMM_WORLD)
    if ranks is not None:
        if not set(ranks) <= set(range(team.size)):
            raise ValueError(f"comm must list ranks from 0 to {team.size - 1}, got {ranks}")
        chosen = team.rank in ranks
        team = team.split(0 if chosen else 1 + team.rank, ranks.index(team.rank) if chosen else 0)
    _settle_in(team)
    global_process_set.ranks = list(range(team.size))
    global_process_set.adopt(0, team)
    launch.can_be_lost()
    for each in [] if process_sets in (None, "dynamic") else process_sets:
        add_process_set(each)


def _settle_in(team) -> None:
    _Here.team = team
    nodes, _Here.node = _nodes(team)
    _Here.nodes = tuple(nodes)


def regroup(seconds: float) -> list[int]:
    """After a failure, go on with the ranks that are left, renumbered; returns the lost ones.

    All ranks that are left call it; see `Team.regroup`. Process sets go on, too.
    """
    old = _team()
    new = old.regroup(seconds)
    # Before what may fail: another call then begins with the new team, and sets as they are.
    _Here.team, numbers = new, new.mates
    process_sets.regroup(new, numbers)
    _settle_in(new)
    return [rank for rank in range(old.size) if rank not in numbers]


def heed() -> None:
    """Raise what other ranks have reported so far; does not wait."""
    team = _team()
    with lock:
        team.ready()
        try:
            team.heed()
        except BaseException as error:
            team.abort(error, heard=True)
            raise


def wait_for_all() -> None:
    with lock:
        _team().barrier()


def fail(error: BaseException) -> None:
    """Tell the ranks of all process sets that this one has left its calls."""
    for team in process_sets.teams():
        team.abort(error)


def leave(error: BaseException) -> None:
    """Tell them, too, that this rank will not come back."""
    fail(error)
    for team in process_sets.teams():
        team.say_the_end()


def add_process_set(process_set: ProcessSet | list[int]) -> ProcessSet:
    """Make a set of ranks with collectives of their own. All ranks of the job call this."""
    return process_sets.add(_team(), process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; returns False for the global one, or one that is not in use."""
    _team()
    if process_set.process_set_id is None or process_set is global_process_set:
        return False
    process_set.drop()
    return True


def shutdown() -> None:
    """Leave the job. Afterwards collectives can't be called, but init() can.

    It does not wait for other ranks; one that still calls a collective gets an error that says that
    this rank has left.
    """
    if _Here.team is not None:
        for each in list(process_sets.in_use.values()):
            each.drop()
        _Here.team.say_the_end()
        _Here.team.forget()
        _Here.team = None


def _team():
    if _Here.team is None:
        raise ValueError("Horovod has not been initialized: call hvd.init() first")
    return _Here.team


def _nodes(team) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """(Ranks of each node, ranks of this node), by shared memory, else by host."""
    if team.size == 1 or any(len(node) > 1 for node in team.nodes):
        return team.nodes, team.node
    from numba_kernels.shared.window import node_token

    tokens = team.allgather(np.array([node_token()], np.int64))[:, 0]
    nodes = [tuple(map(int, np.flatnonzero(tokens == t))) for t in dict.fromkeys(tokens.tolist())]
    return nodes, next(node for node in nodes if team.rank in node)


def is_initialized() -> bool:
    return _Here.team is not None


def rank() -> int:
    """This process's rank among all processes."""
    return _team().rank


def size() -> int:
    """Number of processes."""
    return _team().size


def local_rank() -> int:
    """This process's rank among those of its node; use it as the number of its GPU."""
    return _Here.node.index(rank())


def local_size() -> int:
    """Number of processes on this node."""
    _team()
    return len(_Here.node)


def _peers_elsewhere() -> list[int]:
    """The process with this local rank on each node that has one."""
    mine = local_rank()
    return [node[mine] for node in _Here.nodes if len(node) > mine]


def cross_rank() -> int:
    """This node's number among the nodes that have a process with this local rank."""
    return _peers_elsewhere().index(rank())


def cross_size() -> int:
    """Number of nodes that have a process with this local rank."""
    return len(_peers_elsewhere())


def is_homogeneous() -> bool:
    """Whether all nodes have the same number of processes."""
    _team()
    return len({len(node) for node in _Here.nodes}) == 1


# Scripts ask for these before they start. The only transports here are MPI and shared memory.


def mpi_threads_supported() -> bool:
    """Whether this MPI may be called from several threads at once."""
    _team()
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def mpi_built() -> bool:
    return True


def gloo_built() -> bool:
    return False


def nccl_built() -> int:
    return 0


mpi_enabled = mpi_built
gloo_enabled = ddl_built = ccl_built = cuda_built = rocm_built = gloo_built


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Not implemented; see `numba_kernels.trace` and `python -m tutorial_dl train --timeline`."""
    raise NotImplementedError(
        "start_timeline and stop_timeline are not implemented: use numba_kernels.trace, "
        "or python -m tutorial_dl train --timeline FILE"
    )


def stop_timeline() -> None:
    """Not implemented; see `start_timeline`."""
    start_timeline("")
