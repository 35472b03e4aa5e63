"""Start and stop, process sets, and each rank's place: init, shutdown, rank, size and others."""

from collections.abc import Iterable

import numpy as np

from numba_kernels import launch

from .wire import Wire, lock

__all__ = [
    "ProcessSet", "add_process_set", "ccl_built", "cross_rank", "cross_size", "cuda_built",
    "ddl_built", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous",
    "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "remove_process_set", "rocm_built", "shutdown",
    "size", "start_timeline", "stop_timeline",
]  # fmt: skip


class ProcessSet:
    """A subset of the ranks. Pass it to `init` or `add_process_set`, then to collectives.

    Attributes:
        ranks: The ranks in the job, ascending.
        process_set_id: Its number, the same on all ranks; None while it is not in use.
    """

    def __init__(self, ranks: Iterable[int] = ()):
        try:
            self.ranks = sorted(int(r) for r in ranks)
        except TypeError:
            raise TypeError(f"ranks must be a list of ranks, got {ranks!r}") from None
        if len(set(self.ranks)) < len(self.ranks):
            raise ValueError(f"a ProcessSet must have each rank only once, got {self.ranks}")
        self.process_set_id: int | None = None
        self._wire: Wire | None = None

    def adopt(self, number: int, team) -> None:
        """Start to use this set; `team` is None on ranks that are not in it."""
        self.process_set_id = number
        self._wire = None if team is None else Wire(team)
        in_use[number] = self

    def split(self, team):
        """The team of this set's ranks of `team`, None on other ranks. Collective in `team`."""
        part = team.split(0 if team.rank in self.ranks else 1)
        if team.rank in self.ranks:
            return part
        part.close()
        return None

    def leave(self) -> None:
        """End this rank's part in it; the other ranks are told."""
        if self._wire is not None:
            self._wire.team.say_the_end()
            self._wire.team.forget()
        self._wire = None

    def drop(self) -> None:
        """Stop using this set."""
        del in_use[self.process_set_id]
        self.leave()
        self.process_set_id = None

    def included(self) -> bool:
        """Whether this rank is in it."""
        self._check()
        return self._wire is not None

    def size(self) -> int:
        """Number of ranks in it."""
        self._check()
        return len(self.ranks)

    def rank(self) -> int:
        """This rank's number in it."""
        return self.wire().team.rank

    def wire(self) -> Wire:
        """The Wire for its collectives; raises ValueError on ranks that are not in it."""
        self._check()
        if self._wire is None:
            raise ValueError(f"this rank is not in {self} and can't call its collectives")
        return self._wire

    def place_of(self, root: int) -> int:
        """The number in this set of rank `root` of the job."""
        self._check()
        if root not in self.ranks:
            raise ValueError(f"root_rank must be one of {self.ranks}, got {root}")
        return self.ranks.index(root)

    def _check(self) -> None:
        if self.process_set_id is None:
            if self is global_process_set:
                raise ValueError("Horovod has not been initialized: call hvd.init() first")
            raise ValueError(f"{self}: not in use")

    def __repr__(self) -> str:
        if self is global_process_set:
            return "the global process set"
        return f"ProcessSet({self.ranks})"


in_use: dict[int, ProcessSet] = {}  # in the order in which they were made
_made = 0  # how many were ever made; numbers are not reused
_nodes: list[tuple[int, ...]] = []  # the ranks of each node
global_process_set = ProcessSet()


def init(comm=None, process_sets: list[ProcessSet] | str | None = None) -> None:
    """Initialise; all ranks call it before anything else. A second call does nothing.

    Args:
        comm: An mpi4py communicator, or a list of ranks; each rank not in the list continues as a
            job of one rank. By default, all processes that mpiexec started (one without mpiexec).
        process_sets: Process sets to make at once, as by `add_process_set`. "dynamic" is accepted
            as in Horovod; here process sets can always be added later.
    """
    if is_initialized():
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
    _nodes[:] = _nodes_of(team)
    global_process_set.ranks = list(range(team.size))
    global_process_set.adopt(0, team)
    launch.can_be_lost()
    for each in [] if process_sets in (None, "dynamic") else process_sets:
        add_process_set(each)


def shutdown() -> None:
    """Leave the job. Afterwards collectives can't be called, but init() can.

    It does not wait for other ranks; one that still calls a collective gets an error that says that
    this rank has left.
    """
    for each in reversed(list(in_use.values())):  # the global one last
        each.drop()
    _nodes.clear()


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` not since."""
    return global_process_set.process_set_id is not None


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Make a set of ranks with collectives of their own. All ranks of the job call this."""
    global _made
    team = _team()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    # All ranks have to name the same set, or they would wait for each other in different ones.
    ranks = process_set.ranks
    name = f"process set {','.join(map(str, ranks))}"
    global_process_set.wire().broadcast([np.zeros(0, np.int32)], 0, name)
    if not ranks or not set(ranks) <= set(range(team.size)):
        raise ValueError(f"a process set must have ranks from 0 to {team.size - 1}, got {ranks}")
    if any(each.ranks == ranks for each in in_use.values()):
        raise ValueError(f"process set {ranks} exists already")
    part = process_set.split(team)
    _made += 1
    process_set.adopt(_made, part)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; returns False for the global one, or one that is not in use."""
    _team()
    if process_set.process_set_id is None or process_set is global_process_set:
        return False
    process_set.drop()
    return True


def process_set_by_id(process_set_id: int) -> ProcessSet:
    if process_set_id not in in_use:
        raise ValueError(f"there is no process set with number {process_set_id}")
    return in_use[process_set_id]


# What elastic training needs


def teams() -> list:
    """The teams of all sets that this rank is in."""
    return [each.wire().team for each in in_use.values() if each.included()]


def regroup(seconds: float) -> list[int]:
    """After a failure, go on with the ranks that are left, renumbered; returns the lost ones.

    All ranks that are left call it; see `Team.regroup`. Every process set keeps its number and
    those of its ranks that are left, perhaps none.
    """
    old = _team()
    team = old.regroup(seconds)
    numbers = team.mates  # {rank before: rank in it}
    # The new team comes before what may fail: another call then begins with it. The team before is
    # not told that it ends, because all may have to come back to it (regrouping.py).
    sets = [each for each in list(in_use.values()) if each is not global_process_set]
    for each in [global_process_set, *sets]:
        each.ranks = sorted(numbers[rank] for rank in each.ranks if rank in numbers)
    global_process_set.adopt(0, team)
    for each in sets:
        each.leave()
        each.adopt(each.process_set_id, each.split(team) if each.ranks else None)
    _nodes[:] = _nodes_of(team)
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


def fail(error: BaseException, for_good: bool = False) -> None:
    """Tell the ranks of all process sets that this one has left its calls; `for_good`: for ever."""
    for team in teams():
        team.abort(error)
    for team in teams() if for_good else ():
        team.say_the_end()


# Places


def _team():
    return global_process_set.wire().team


def _nodes_of(team) -> list[tuple[int, ...]]:
    """The ranks of each node, by shared memory, else by host. Collective."""
    if team.size == 1 or any(len(node) > 1 for node in team.nodes):
        return team.nodes
    from numba_kernels.shared.window import node_token

    tokens = team.allgather(np.array([node_token()], np.int64))[:, 0]
    return [tuple(map(int, np.flatnonzero(tokens == t))) for t in dict.fromkeys(tokens.tolist())]


def rank() -> int:
    """This process's rank among all processes."""
    return _team().rank


def size() -> int:
    """Number of processes."""
    return _team().size


def _node() -> tuple[int, ...]:
    mine = rank()
    return next(node for node in _nodes if mine in node)


def local_rank() -> int:
    """This process's rank among those of its node; use it as the number of its GPU."""
    return _node().index(rank())


def local_size() -> int:
    """Number of processes on this node."""
    return len(_node())


def _peers_elsewhere() -> list[int]:
    """The process with this local rank on each node that has one."""
    mine = local_rank()
    return [node[mine] for node in _nodes if len(node) > mine]


def cross_rank() -> int:
    """This node's number among the nodes that have a process with this local rank."""
    return _peers_elsewhere().index(rank())


def cross_size() -> int:
    """Number of nodes that have a process with this local rank."""
    return len(_peers_elsewhere())


def is_homogeneous() -> bool:
    """Whether all nodes have the same number of processes."""
    _team()
    return len(set(map(len, _nodes))) == 1


# Scripts ask for these before they start. The only transports here are MPI and shared memory.


def mpi_threads_supported() -> bool:
    """Whether this MPI may be called from several threads at once."""
    _team()
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def mpi_built() -> bool:
    """True: messages go by MPI."""
    return True


def gloo_built() -> bool:
    """False: messages go by MPI and shared memory only."""
    return False


def nccl_built() -> int:
    """0: there is no NCCL here."""
    return 0


mpi_enabled = mpi_built
gloo_enabled = ddl_built = ccl_built = cuda_built = rocm_built = gloo_built


def start_timeline(file_path: str = "", mark_cycles: bool = False) -> None:
    """Not implemented; see `numba_kernels.trace` and `python -m tutorial_dl train --timeline`."""
    raise NotImplementedError(
        "start_timeline and stop_timeline are not implemented: use numba_kernels.trace, "
        "or python -m tutorial_dl train --timeline FILE"
    )


stop_timeline = start_timeline
