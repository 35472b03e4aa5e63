"""Tasks: which worker trains on which samples; every sample once per epoch, even after failures.

An epoch is cut into batches, at *positions* 0, 1, 2 ..., and each batch into shares:

                      worker 0   worker 1   worker 2
        position 0      share      share      share
        position 1      share      share      share
        ...

Asynchronous (`AsynchronousTasks`): every share is a batch of its own. Each worker goes down its own
column at its own speed; a worker with nothing left takes shares from the end of the longest column
of other workers, or begins the next epoch. Synchronous (`SynchronousTasks`, in
synchronous_tasks.py): all shares of a position form one batch of all workers together.

A task that a failed worker had begun but not reported goes to other workers. Tasks hold numbers
only; the worker that does a task looks up its samples (task_batches.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Task:
    """The share [low, high) / parts of the batches at positions first ... first + count - 1.

    In a batch of n samples, these are samples n low // parts ... n high // parts - 1. `size` is the
    number of samples of a whole batch. `more` is an extra piece (position, low, high, parts);
    position -1: none.
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
    """The share [low, high) / parts of the batches at positions first ... first + count - 1.

    Work that one master's workers have not done, for another master or a checkpoint.
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
    """(first, count) of each run of consecutive positions."""
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
    """Positions of each column not yet handed out in one epoch; `open`: number not yet done."""

    number: int
    parts: int
    columns: dict[int, deque[int]]

    def __post_init__(self):
        self.open = sum(len(column) for column in self.columns.values())


class AsynchronousTasks:
    """The tasks of one master's workers, for asynchronous rules.

    Args:
        columns: {worker: its column}.
        parts: Number of columns, of all masters' workers together.
        samples: Samples per epoch.
        batch_size: Samples per share.
        first, last: Epochs first ... last - 1.
        every: Most shares per task.
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
        self.adopted: list[Rest] = []  # work in later epochs
        self.lost: set[int] = set()
        self.stopped = False

    def resume(self, saved: list[dict]) -> None:
        """Take up epochs of an earlier run, perhaps with other workers, as `save` returned them."""
        own = sorted(self.columns.values())
        for each in saved:
            left = {q: deque(rest) for q, *rest in each["left"] if q % self.parts in own}
            epoch = Epoch(each["epoch"], each["parts"], left)
            self.epochs[epoch.number] = epoch
            self.next_epoch = max(self.next_epoch, epoch.number + 1)

    # Handing out

    def next(self, worker: int) -> Task | None:
        """The next task of `worker`; None: there is none, now or for the rest of the run."""
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
        """Whether the next epoch may begin; at most one ahead, to wait for stopped workers."""
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
        """A share of a column whose worker is lost, or will not reach it soon."""
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
        """Number of epochs that have begun."""
        return self.next_epoch

    def undone(self) -> list[Rest]:
        """Work not done in begun epochs, and work that was adopted for later ones."""
        rest = list(self.adopted)
        for epoch in self.epochs.values():
            for q, positions in self._left(epoch).items():
                rest += [Rest(epoch.number, *run, q, q + 1, epoch.parts) for run in runs(positions)]
        return rest

    def of_epoch(self, number: int) -> list[Rest]:
        """All work of an epoch that has not begun."""
        columns = sorted(self.columns.values())
        return [Rest(number, 0, self.positions, q, q + 1, self.parts) for q in columns]

    def leave(self) -> list[Rest]:
        """When no worker is left: remove and return all work not done, for others to adopt."""
        rest = self.undone()
        for number in range(self.next_epoch, self.last):
            rest += self.of_epoch(number)
        self.adopted, self.next_epoch = [], self.last
        self.epochs.clear()
        return rest

    def adopt(self, rest: Rest) -> None:
        """Take over work of another master's workers, in a begun or a later epoch."""
        if rest.epoch >= self.next_epoch:
            self.adopted.append(rest)
            return
        epoch = self.epochs.setdefault(rest.epoch, Epoch(rest.epoch, rest.parts, {}))
        positions = range(rest.first, rest.first + rest.count)
        epoch.columns.setdefault(rest.low, deque()).extend(positions)
        epoch.open += rest.count

    # Results

    def done(self, worker: int) -> Task | None:
        """Mark the task of `worker` as done and return it."""
        if worker not in self.given:
            return None
        task, _ = self.given.pop(worker)
        self.epochs[task.epoch].open -= task.count
        return task

    def lose(self, worker: int) -> None:
        """Remove `worker`, which is lost; its task will be done again."""
        self.lost.add(worker)
        if worker in self.given:
            task, queue = self.given.pop(worker)
            again = range(task.first, task.first + task.count)
            self.epochs[task.epoch].columns[queue].extendleft(reversed(again))

    def complete(self) -> list[int]:
        """Epochs that are now complete, in order; each is returned once."""
        found = []
        for number in sorted(self.epochs):
            if self.epochs[number].open:
                break
            found.append(number)
            del self.epochs[number]
        return found

    @property
    def over(self) -> bool:
        """Whether no task is in progress and none will follow."""
        more = self.next_epoch < self.last or self.epochs
        return not self.given and (self.stopped or not more)

    def _left(self, epoch: Epoch) -> dict[int, set[int]]:
        """Positions of each column that are not done, including tasks in progress."""
        left = {queue: set(column) for queue, column in epoch.columns.items()}
        for task, queue in self.given.values():
            if task.epoch == epoch.number:
                left[queue] |= set(range(task.first, task.first + task.count))
        return left

    def save(self) -> list[dict]:
        """The work not done in begun epochs, for a checkpoint."""
        rest = self.undone()
        return [self.entry(n, [one for one in rest if one.epoch == n]) for n in self.epochs]

    def entry(self, number: int, rests: list[Rest]) -> dict:
        """The entry of a checkpoint for one begun epoch with the work `rests` not done."""
        left: dict[int, set[int]] = {}
        for rest in rests:
            left.setdefault(rest.low, set()).update(range(rest.first, rest.first + rest.count))
        parts = rests[0].parts if rests else self.parts
        columns = [[q, *sorted(positions)] for q, positions in sorted(left.items())]
        return {"epoch": number, "parts": parts, "left": columns}
