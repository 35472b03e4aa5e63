"""Process sets: subsets of the ranks with collectives of their own."""

from collections.abc import Iterable

import numpy as np

from .wire import Wire


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

    def drop(self) -> None:
        """Stop using this set; tells the other ranks."""
        del in_use[self.process_set_id]
        self._leave()
        self.process_set_id = None

    def _leave(self) -> None:
        if self._wire is not None:
            self._wire.team.say_the_end()
            self._wire.team.forget()
        self._wire = None

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
            why = "call hvd.init() first" if self is global_process_set else "not in use"
            raise ValueError(f"{self}: {why}")

    def __repr__(self) -> str:
        if self is global_process_set:
            return "the global process set"
        return f"ProcessSet({self.ranks})"


in_use: dict[int, ProcessSet] = {}  # in the order in which they were made
_made = 0  # how many were ever made; numbers are not reused
global_process_set = ProcessSet()


def add(team, process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """See `basics.add_process_set`."""
    global _made
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    # All ranks have to name the same set, or they would wait for each other in different ones.
    ranks = process_set.ranks
    global_process_set.wire().broadcast(
        [np.zeros(0, np.int32)], 0, name=f"process set {','.join(map(str, ranks))}"
    )
    if not ranks or not set(ranks) <= set(range(team.size)):
        raise ValueError(f"a process set must have ranks from 0 to {team.size - 1}, got {ranks}")
    if any(each.ranks == ranks for each in in_use.values()):
        raise ValueError(f"process set {ranks} exists already")
    part = _part(team, ranks)
    _made += 1
    process_set.adopt(_made, part)
    return process_set


def teams() -> list:
    """The teams of all sets that this rank is in."""
    return [each.wire().team for each in in_use.values() if each.included()]


def regroup(team, numbers: dict[int, int]) -> None:
    """Go on in `team`, which has the ranks that are left; `numbers`: {rank before: rank in it}.

    Every set keeps its number and those of its ranks that are left, perhaps none.
    """
    sets = [each for each in list(in_use.values()) if each is not global_process_set]
    for each in [global_process_set, *sets]:
        each.ranks = sorted(numbers[rank] for rank in each.ranks if rank in numbers)
    # It does not say that the team before ends, to which all may have to come back (regrouping.py).
    global_process_set.adopt(0, team)
    for each in sets:
        each._leave()
        each.adopt(each.process_set_id, _part(team, each.ranks) if each.ranks else None)


def _part(team, ranks: list[int]):
    """The team of these ranks of `team`, None on other ranks. All ranks of `team` call it."""
    part = team.split(0 if team.rank in ranks else 1)
    if team.rank in ranks:
        return part
    part.close()
    return None


def process_set_by_id(process_set_id: int) -> ProcessSet:
    if process_set_id not in in_use:
        raise ValueError(f"there is no process set with number {process_set_id}")
    return in_use[process_set_id]
