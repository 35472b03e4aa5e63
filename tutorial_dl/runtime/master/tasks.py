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
only; the worker that does a task looks up its samples (task_batches.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


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

    def words(self) -> list[int]:
        *numbers, more = self
        return [*numbers, *more]

    @classmethod
    def of_words(cls, words) -> Task:
        numbers = [int(word) for word in words[:11]]
        return cls(*numbers[:7], tuple(numbers[7:]))


class Rest(NamedTuple):
    """A share of batches, as in a Task, that one master's workers have not done.

    It is for another master or a checkpoint.
    """

    epoch: int
    first: int
    count: int
    low: int
    high: int
    parts: int

    positions = Task.positions

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


class Tasks:
    """The tasks of one master's workers.

    Args:
        columns: {worker: its column}; for synchronous rules, the columns are neighbours.
        parts: Number of columns, of all masters' workers together.
        samples: Samples per epoch.
        batch_size: Samples per share; for synchronous rules, per batch of all workers.
        first, last: Epochs first ... last - 1.
        every: Most batches per task.

    A subclass has also

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

    per_share = True  # whether `batch_size` counts the samples of a share

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
        self.first, self.last, self.every = first, last, every
        self.size = batch_size * (parts if self.per_share else 1)  # of a whole batch
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
