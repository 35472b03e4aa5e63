"""Tasks: which worker trains on which samples; every sample once per epoch, even after failures.

An epoch is cut into batches, at *positions* 0, 1, 2 ..., and each batch into shares:

                      worker 0   worker 1   worker 2
        position 0      share      share      share
        position 1      share      share      share
        ...

Asynchronous (asynchronous_tasks.py): every share is a batch of its own. Each worker goes down its
own column at its own speed; a worker with nothing left takes shares from the end of the longest
column of other workers, or begins the next epoch. Synchronous (synchronous_tasks.py): all shares of
a position form one batch of all workers together.

A task that a failed worker had begun but not reported goes to other workers. Tasks hold numbers
only; the worker that does a task looks up its samples (`TaskBatches`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from ...data import Batches, Data
from ...data.dataset import share
from ...replica.base import Batch

NUMBERS = 12  # of a measurement that fit in a message


def record_of(kind, words):
    """The record of class `kind` in the words of a message: of whole numbers if it can't say."""
    if hasattr(kind, "of_words"):
        return kind.of_words(words)
    return kind(*map(int, words[: len(kind._fields)]))


class Task(NamedTuple):
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

    @property
    def positions(self) -> range:
        return range(self.first, self.first + self.count)

    @classmethod
    def of_words(cls, words) -> Task:
        numbers = [int(word) for word in words[:11]]
        return cls(*numbers[:7], tuple(numbers[7:]))


class Rest(NamedTuple):
    """A share of batches, as in a Task, that is not done; for another master or a checkpoint."""

    epoch: int
    first: int
    count: int
    low: int
    high: int
    parts: int

    positions = Task.positions


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


class Tasks:
    """The tasks of one master's workers, for epochs first ... last - 1.

    `columns` is {worker: its column}, neighbours for synchronous rules; `parts` counts the columns
    of all masters' workers. `size` counts the samples of a whole batch, of which each column has a
    share. A task has at most `every` batches. A subclass has also

        next(worker)     the next Task of `worker`; None: there is none, now or at all
        lose(worker)     remove `worker`, which is lost; its task will be done again
        complete()       epochs that are now complete, in order; each is returned once
        begun            number of epochs that have begun
        undone()         work not done in them, and adopted for later ones: a list of Rest
        of_epoch(n)      all work of an epoch that has not begun: a list of Rest
        entry(n, rests)  a checkpoint's entry for a begun epoch of which `rests` are not done
        save()           the entries of all begun epochs
        resume(saved)    take up epochs of an earlier run, perhaps with other workers
    """

    def __init__(
        self,
        columns: dict[int, int],
        parts: int,
        samples: int,
        size: int,
        first: int,
        last: int,
        every: int = 1,
    ):
        self.columns, self.parts, self.size = columns, parts, size
        self.first, self.last, self.every = first, last, every
        self.positions = -(-samples // self.size)
        self.todo: dict[int, Task] = {}  # by worker, not yet handed out
        self.given: dict[int, Task] = {}  # handed out
        self.adopted: list[Rest] = []  # from other masters' workers, for later
        self.stopped = False

    def begin(self) -> None:
        """After everything that happens: begin the next round, if it is time for one."""

    def done(self, worker: int) -> Task | None:
        """Mark the task of `worker` as done and return it."""
        task = self.given.pop(worker, None)
        if task is not None:
            self._done(task)
        return task

    @property
    def between(self) -> bool:
        """Whether no task is in progress."""
        return not self.todo and not self.given

    @property
    def over(self) -> bool:
        """Whether no task is in progress and none will follow."""
        return self.between and (self.stopped or not self._more)

    def adopt(self, rest: Rest) -> None:
        """Take over work of another master's workers, in a begun or a later epoch."""
        self.adopted.append(rest)

    def leave(self) -> list[Rest]:
        """When no worker is left: remove and return all work not done, for others to adopt."""
        rest = self.undone()
        for number in range(self.begun, self.last):
            rest += self.of_epoch(number)
        self.adopted = []
        self._clear()
        return rest


class TaskBatches:
    """Batches by task, for one rank of a worker.

    A worker's own column is read in order (and ahead, if the data support it); batches that it
    takes over from others are read when they are needed.

    `seed` is that of the order of samples; the rank is number `device` of its worker's `devices`.
    """

    def __init__(
        self, data: Data, seed: int, device: int = 0, devices: int = 1, shuffle: bool = True
    ):
        self.data, self.device, self.devices = data, device, devices
        self._given = {"seed": seed, "shuffle": shuffle}
        self._stream: Iterator[Batch] | None = None
        self._at: tuple = ()  # epoch, size, low, high, parts and the next position
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def batch(self, task: Task, number: int) -> Batch:
        """This rank's samples of the `number`-th batch of a task."""
        position = task.first + number
        if task.more[0] >= 0 and number == 0:
            pieces = self._indices(task, position), self._indices(task, *task.more)
            return self._take(np.concatenate(pieces))
        return self._next(task, position)

    def close(self) -> None:
        if self._stream is not None:
            with suppress(ValueError):
                self._stream.close()
        self._stream, self._at = None, ()

    def _next(self, task: Task, position: int) -> Batch:
        width = task.high - task.low
        what = task.epoch, task.size, task.low, task.high, task.parts
        if task.low % width or task.parts % width:
            return self._take(self._indices(task, position))
        if self._at != (*what, position):
            # Don't start to read ahead in another worker's column.
            if self._at and self._at[:5] != what and task.count == 1 and position > 0:
                return self._take(self._indices(task, position))
            self.close()
            batches = Batches(
                self.data, task.size, **self._given,
                rank=task.low // width * self.devices + self.device,
                ranks=task.parts // width * self.devices,
            )  # fmt: skip
            self._stream = batches.epoch(task.epoch, position)
        self._at = (*what, position + 1)
        return next(self._stream)

    def _indices(self, task: Task, position: int, *piece: int) -> np.ndarray:
        low, high, parts = piece or (task.low, task.high, task.parts)
        batch = self._order(task)[position * task.size : (position + 1) * task.size]
        mine = batch[len(batch) * low // parts : len(batch) * high // parts]
        return mine[share(len(mine), self.device, self.devices)]

    def _order(self, task: Task) -> np.ndarray:
        key = task.epoch, task.size
        if key not in self._orders:
            if len(self._orders) > 1:
                self._orders.clear()
            self._orders[key] = Batches(self.data, task.size, **self._given).order(task.epoch)
        return self._orders[key]

    def _take(self, indices: np.ndarray) -> Batch:
        return next(iter(self.data.read([[indices]])))


class Part(NamedTuple):
    """Part `part` of `parts` of the validation data."""

    part: int
    parts: int


class Evaluated(NamedTuple):
    """A piece of what was measured on a part: of the vector of `runtime.evaluation.Sums`."""

    first: int  # the piece's place in the vector
    length: int  # the vector's
    numbers: tuple[float, ...]  # at most NUMBERS

    @classmethod
    def of_words(cls, words) -> Evaluated:
        first, length = int(words[0]), int(words[1])
        return cls(first, length, tuple(words[2 : 2 + min(NUMBERS, length - first)]))

    @classmethod
    def pieces(cls, sums: np.ndarray) -> list[Evaluated]:
        """The messages that take a vector to the master, in order."""
        starts = range(0, sums.size, NUMBERS)
        return [cls(at, sums.size, tuple(sums[at : at + NUMBERS].tolist())) for at in starts]

    @property
    def last(self) -> bool:
        return self.first + len(self.numbers) == self.length


class Validation:
    """A copy of the weights, validated in parts by leaves that ask for work, while others train.

    `epoch` has ended; `parts` are the numbers of the parts to do here, of `of` in all.
    """

    def __init__(self, epoch: int, weights: np.ndarray, state: np.ndarray, parts, of: int):
        self.epoch, self.weights, self.state, self.of = epoch, weights, state, of
        self.todo, self.given = deque(parts), {}
        self.sums: dict[int, np.ndarray] = {}  # by part
        self._arriving: dict[int, list[float]] = {}  # by leaf
        self.row: dict[str, float] = {}  # other columns of this epoch's row in the history

    def add(self, leaf: int, found: Evaluated) -> None:
        """Take in a piece of what `leaf` has measured on its part."""
        numbers = self._arriving.setdefault(leaf, [])
        numbers += found.numbers
        if found.last:
            self.sums[self.given.pop(leaf)] = np.array(self._arriving.pop(leaf))

    def lose(self, leaf: int) -> None:
        self._arriving.pop(leaf, None)
        if leaf in self.given:
            self.todo.appendleft(self.given.pop(leaf))

    @property
    def complete(self) -> bool:
        return not self.todo and not self.given

    def total(self) -> np.ndarray:
        """The sum of all parts, added in a fixed order, whichever part came first."""
        return sum(self.sums[part] for part in sorted(self.sums))
