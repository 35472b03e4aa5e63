"""What there is to do, and who does it: every sample once an epoch, whoever fails.

An epoch is cut into batches, at *positions* 0, 1, 2 ..., and each batch into shares:

                      worker 0   worker 1   worker 2
        position 0      share      share      share
        position 1      share      share      share
        ...

Asynchronous (`Columns`): every share is a batch of its own. Each worker goes down its own column at
its own pace; one that has nothing left takes shares over from the end of the longest column of
others, or begins the next epoch. Synchronous (`Rounds`, in rounds.py): all shares of a position are
one batch, of all workers together.

A worker that fails leaves undone what it had begun and not told of: that goes to others. What is
handed about here are numbers; samples are looked up by who is to use them (items.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Task:
    """Of the batches at positions `first` ... `first + count - 1` the samples [low, high) / parts.

    Of a batch of n samples these are n low // parts ... n high // parts - 1. `size`: samples of a
    whole batch. With `more` another piece goes along: (position, low, high, parts), -1: none.
    """

    epoch: int
    size: int
    first: int
    count: int
    low: int
    high: int
    parts: int
    more: tuple[int, int, int, int] = (-1, 0, 1, 1)

    def words(self) -> list[int]:
        *numbers, more = astuple(self)
        return [*numbers, *more]

    @classmethod
    def of_words(cls, words) -> Task:
        numbers = [int(word) for word in words[:11]]
        return cls(*numbers[:7], tuple(numbers[7:]))


class Rest(NamedTuple):
    """Of the batches at positions `first` ... `first + count - 1` the samples [low, high) / parts.

    What the workers of one master have not done: for those of another, or for a checkpoint.
    """

    epoch: int
    first: int
    count: int
    low: int
    high: int
    parts: int

    @classmethod
    def of_words(cls, words) -> Rest:
        return cls(*(int(word) for word in words[:6]))


def runs(positions: Iterable[int]) -> list[tuple[int, int]]:
    """(first, count) of each stretch without a gap."""
    found: list[tuple[int, int]] = []
    for position in sorted(positions):
        first, count = found[-1] if found else (position, 0)
        if position == first + count:
            found[-1:] = [(first, count + 1)]
        else:
            found.append((position, 1))
    return found


@dataclass
class Epoch:
    """What is not handed out of one epoch: positions of each column. `open`: what is not done."""

    number: int
    parts: int
    columns: dict[int, deque[int]]

    def __post_init__(self):
        self.open = sum(len(column) for column in self.columns.values())


class Columns:
    """For the asynchronous forms: what the workers of one master are to do.

    Args:
        columns: {worker: its column}.
        parts: Columns of all masters' workers together.
        samples: Of an epoch.
        batch_size: Of a share.
        first, last: Epochs first ... last - 1.
        every: Shares of a task at most.
    """

    def __init__(
        self,
        columns: dict[int, int],
        parts: int,
        samples: int,
        batch_size: int,
        first: int,
        last: int,
        every: int = 1,
    ):
        self.columns, self.parts, self.batch_size = columns, parts, batch_size
        self.positions = -(-samples // (batch_size * parts))
        self.next_epoch, self.last, self.every = first, last, every
        self.epochs: dict[int, Epoch] = {}
        self.given: dict[int, tuple[Task, int]] = {}  # worker -> task, its column
        self.adopted: list[Rest] = []  # of epochs to come
        self.lost: set[int] = set()
        self.stopped = False

    def resume(self, saved: list[dict]) -> None:
        """Epochs that an earlier run began, perhaps with other workers: what `save` returned."""
        own = sorted(self.columns.values())
        for each in saved:
            left = {q: deque(rest) for q, *rest in each["left"] if q % self.parts in own}
            epoch = Epoch(each["epoch"], each["parts"], left)
            self.epochs[epoch.number] = epoch
            self.next_epoch = max(self.next_epoch, epoch.number + 1)

    # Handing out

    def next(self, worker: int) -> Task | None:
        """What `worker` is to do now; None: nothing, for the moment or for good."""
        found = None if self.stopped else self._own(worker) or self._others(worker)
        while found is None and not self.stopped and self._may_begin:
            columns = {q: deque(range(self.positions)) for q in self.columns.values()}
            self.epochs[self.next_epoch] = Epoch(self.next_epoch, self.parts, columns)
            self.next_epoch += 1
            adopted, self.adopted = self.adopted, []
            for rest in adopted:
                self.adopt(rest)
            found = self._own(worker) or self._others(worker)
        if found is None:
            return None
        self.given[worker] = found
        return found[0]

    @property
    def _may_begin(self) -> bool:
        """The next epoch. One ahead is enough: who stopped may come back, or is given up then."""
        oldest = min(self.epochs, default=self.next_epoch)
        return self.next_epoch < self.last and self.next_epoch <= oldest + 1

    def _own(self, worker: int) -> tuple[Task, int] | None:
        queue = self.columns[worker]
        for epoch in self.epochs.values():
            if column := epoch.columns.get(queue):
                first, count = column.popleft(), 1
                while count < self.every and column and column[0] == first + count:
                    column.popleft()
                    count += 1
                return self._task(epoch, queue, first, count)
        return None

    def _others(self, worker: int) -> tuple[Task, int] | None:
        """A share of a column whose worker is gone, or that its worker won't come to soon."""
        kept = {queue for w, queue in self.columns.items() if w not in self.lost}
        for epoch in self.epochs.values():
            left = {q: len(column) - (q in kept) for q, column in epoch.columns.items()}
            longest = max(left, key=lambda q: (left[q], -q), default=None)
            if longest is not None and left[longest] > 0:
                return self._task(epoch, longest, epoch.columns[longest].pop(), 1)
        return None

    def _task(self, epoch: Epoch, queue: int, first: int, count: int) -> tuple[Task, int]:
        size = self.batch_size * epoch.parts
        return Task(epoch.number, size, first, count, queue, queue + 1, epoch.parts), queue

    # From one master to another

    @property
    def begun(self) -> int:
        """Epochs before this one have been begun."""
        return self.next_epoch

    def undone(self) -> list[Rest]:
        """Of epochs that have been begun, and what others left of those to come."""
        rest = list(self.adopted)
        for epoch in self.epochs.values():
            for q, positions in self._left(epoch).items():
                rest += [Rest(epoch.number, *run, q, q + 1, epoch.parts) for run in runs(positions)]
        return rest

    def of_epoch(self, number: int) -> list[Rest]:
        """All of an epoch that has not been begun."""
        columns = sorted(self.columns.values())
        return [Rest(number, 0, self.positions, q, q + 1, self.parts) for q in columns]

    def leave(self) -> list[Rest]:
        """When no worker is left: all that is not done, which others adopt. Nothing stays here."""
        rest = self.undone()
        for number in range(self.next_epoch, self.last):
            rest += self.of_epoch(number)
        self.adopted, self.next_epoch = [], self.last
        self.epochs.clear()
        return rest

    def adopt(self, rest: Rest) -> None:
        """Do what workers of another master leave; in an epoch that was begun, or is to come."""
        if rest.epoch >= self.next_epoch:
            self.adopted.append(rest)
            return
        epoch = self.epochs.setdefault(rest.epoch, Epoch(rest.epoch, rest.parts, {}))
        positions = range(rest.first, rest.first + rest.count)
        epoch.columns.setdefault(rest.low, deque()).extend(positions)
        epoch.open += rest.count

    # What came of it

    def done(self, worker: int) -> Task | None:
        """`worker` is through with its task; returns it."""
        if worker not in self.given:
            return None
        task, _ = self.given.pop(worker)
        self.epochs[task.epoch].open -= task.count
        return task

    def lose(self, worker: int) -> None:
        """`worker` is gone: what it was at is to be done again."""
        self.lost.add(worker)
        if worker in self.given:
            task, queue = self.given.pop(worker)
            again = range(task.first, task.first + task.count)
            self.epochs[task.epoch].columns[queue].extendleft(reversed(again))

    def complete(self) -> list[int]:
        """Epochs of which everything is done, in their order; told once."""
        found = []
        for number in sorted(self.epochs):
            if self.epochs[number].open:
                break
            found.append(number)
            del self.epochs[number]
        return found

    @property
    def over(self) -> bool:
        """Nobody is at anything, nor will be."""
        more = self.next_epoch < self.last or self.epochs
        return not self.given and (self.stopped or not more)

    def _left(self, epoch: Epoch) -> dict[int, set[int]]:
        """Positions of each column that are not done, whether somebody is at them or not."""
        left = {queue: set(column) for queue, column in epoch.columns.items()}
        for task, queue in self.given.values():
            if task.epoch == epoch.number:
                left[queue] |= set(range(task.first, task.first + task.count))
        return left

    def save(self) -> list[dict]:
        """What is not done of epochs that have been begun, for a checkpoint."""
        rest = self.undone()
        return [self.entry(n, [one for one in rest if one.epoch == n]) for n in self.epochs]

    def entry(self, number: int, rests: list[Rest]) -> dict:
        """For a checkpoint: all that is not done of an epoch that has been begun."""
        left: dict[int, set[int]] = {}
        for rest in rests:
            left.setdefault(rest.low, set()).update(range(rest.first, rest.first + rest.count))
        parts = rests[0].parts if rests else self.parts
        columns = [[q, *sorted(positions)] for q, positions in sorted(left.items())]
        return {"epoch": number, "parts": parts, "left": columns}
