"""Tasks: which worker trains on which samples; every sample once per epoch, even after failures.

The samples of an epoch have an order; a number in it is a *place*. Work is a stretch of places,
cut into batches of `size` places, and of each batch a share: a `Task`. What is left of an epoch is
a list of tasks by column, and what is given out is in `Tasks.given`; all other places are done.

Asynchronous (`AsynchronousTasks`): each worker goes down a column of its own, a stretch of whole
batches, at its own speed; a worker with nothing left takes batches from the end of the longest
column of other workers, or begins the next epoch. Synchronous (`SynchronousTasks`): there is one
column, and in each round all workers share its next batches.

A task that a failed worker had begun but not reported is left again, for other workers. Tasks hold
numbers only; the worker that does a task looks up its samples (`TaskBatches`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import inf
from typing import NamedTuple

import numpy as np

from ...data import Batches, Data, Hdf5Data
from ...data.dataset import share
from ...replica.base import Batch


class Task(NamedTuple):
    """Places start ... stop - 1 of an epoch, in batches; of each, share `share` of `shares`.

    Batches end at multiples of `size`, and at `stop`. The epoch's order was drawn for batches of
    `order` samples.
    """

    epoch: int
    order: int
    size: int
    start: int
    stop: int
    share: int = 0
    shares: int = 1

    @property
    def count(self) -> int:
        """The number of batches."""
        return -(-self.stop // self.size) - self.start // self.size

    def batch(self, number: int) -> tuple[int, int]:
        """The places [start, stop) of a whole batch, not of a share."""
        at = (self.start // self.size + number) * self.size
        return max(self.start, at), min(self.stop, at + self.size)

    def split(self, number: int) -> tuple[Task, Task | None]:
        """The first `number` batches, and the others, if there are any."""
        epoch, order, size, start, stop, share, shares = self
        at = max(start, (start // size + number) * size)
        if at >= stop:
            return self, None
        first = Task(epoch, order, size, start, at, share, shares)
        return first, Task(epoch, order, size, at, stop, share, shares)

    def divided(self, j: int, of: int) -> Task:
        """The j-th of `of` equal shares of this one."""
        return self._replace(share=self.share * of + j, shares=self.shares * of)

    def places(self) -> list[tuple[int, int]]:
        """The stretches [start, stop) of places."""
        if self.shares == 1:
            return [(self.start, self.stop)]
        found = []
        for start, stop in map(self.batch, range(self.count)):
            own = share(stop - start, self.share, self.shares)
            found.append((start + own.start, start + own.stop))
        return found

    def without(self, start: int, stop: int) -> list[Task]:
        """What remains of a task that is not shared when places [start, stop) are done."""
        ends = (self.start, min(start, self.stop)), (max(stop, self.start), self.stop)
        return [self._replace(start=a, stop=b) for a, b in ends if a < b]


def joined(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same places in as few stretches as possible, in order."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(stretches):
        if found and found[-1][1] == start:
            start = found.pop()[0]
        if start < stop:
            found.append((start, stop))
    return found


class Tasks:
    """What is left of epochs first ... last - 1, of `samples` samples each, and who does what.

    A batch has `size` samples, and a task at most `every` batches. `workers` are those that are
    not lost. A subclass has also

        columns(tasks)   the columns, {name: deque of tasks}, of an epoch of which `tasks` are left
        next(worker)     the next Task of `worker`, which is now given; None: there is none, now or
                         at all
    """

    def __init__(
        self, workers: Iterable, samples: int, size: int, first: int, last: int, every: int = 1
    ):
        self.workers, self.samples, self.size, self.every = list(workers), samples, size, every
        self.begun, self.last = first, last  # number of the next epoch to begin, and the end
        self.left: dict[int, dict] = {}  # columns by epoch, of those that are not complete
        self.given: dict[object, list[Task]] = {}  # to workers or their master, and not done
        self.stopped = False

    # Epochs

    def open(self, number: int, order: int, stretches) -> None:
        """Begin an epoch of which these stretches of places are left, in any order."""
        tasks = [Task(number, order, self.size, *ends) for ends in joined(stretches)]
        self.left[number] = self.columns(tasks)
        self.begun = max(self.begun, number + 1)

    def open_next(self) -> None:
        self.open(self.begun, self.size, [(0, self.samples)])

    def resume(self, saved: list[dict]) -> None:
        """Take up the epochs of an earlier run, perhaps with other workers (`save`)."""
        for each in saved:
            self.open(each["epoch"], each["order"], each["left"])

    def save(self) -> list[dict]:
        """For a checkpoint: what is not done of each epoch that has begun, given tasks included."""
        given = [task for tasks in self.given.values() for task in tasks]
        saved = []
        for number, columns in sorted(self.left.items()):
            tasks = [task for column in columns.values() for task in column]
            tasks += [task for task in given if task.epoch == number]
            order = tasks[0].order if tasks else self.size
            places = joined(stretch for task in tasks for stretch in task.places())
            saved.append({"epoch": number, "order": order, "left": places})
        return saved

    def complete(self) -> list[int]:
        """Epochs that are now complete, in order; each is returned once."""
        found = []
        for number in sorted(self.left):
            if any(self.left[number].values()):
                break
            if any(task.epoch == number for tasks in self.given.values() for task in tasks):
                break
            found.append(number)
            del self.left[number]
        return found

    # Tasks

    def take(self, task: Task) -> None:
        """Have this task, which a master above has given, done as well."""
        columns = self.left.setdefault(task.epoch, {})
        for column, tasks in self.columns([task]).items():
            columns.setdefault(column, deque()).extend(tasks)

    def done(self, holder, pieces=None) -> list[Task]:
        """Mark as done what `holder` has, or (epoch, start, stop) of it; return what it had."""
        had = self.given.pop(holder, [])
        if pieces is not None:
            left = had
            for epoch, *ends in pieces:
                left = [
                    rest
                    for task in left
                    for rest in (task.without(*ends) if task.epoch == epoch else [task])
                ]
            self.given[holder] = left
        return had

    def give_back(self, holder) -> None:
        """Have others do what `holder` has not done."""
        for task in reversed(self.given.pop(holder, [])):
            if joined(task.places()):  # of a short batch, a worker may have no sample
                columns = self.left.setdefault(task.epoch, {})
                columns.setdefault(None, deque()).appendleft(task)

    def lose(self, worker) -> None:
        """Do without `worker` from now on."""
        if worker in self.workers:
            self.workers.remove(worker)

    def begin(self) -> None:
        """After everything that happens: begin the next round, if it is time for one."""

    @property
    def over(self) -> bool:
        """Whether no task is in progress and none will follow."""
        return not any(self.given.values()) and (
            self.stopped or (self.begun >= self.last and not self.left)
        )


class AsynchronousTasks(Tasks):
    """Each worker has a column of its own; None is that of work that was given back."""

    ahead: float = 1  # epochs that may begin while an earlier one is not complete
    helps = True  # whether a worker takes from the columns of workers that are not lost

    def columns(self, tasks: list[Task]) -> dict:
        found: dict[object, deque[Task]] = {worker: deque() for worker in self.workers}
        for task in tasks:
            for j, worker in enumerate(self.workers):
                first, end = (task.count * k // len(self.workers) for k in (j, j + 1))
                if end > first:
                    found[worker].append(task.split(end)[0].split(first)[1])
        return found

    def next(self, worker) -> Task | None:
        found = self._find(worker)
        if found is None:
            return None
        column, own = found
        if own:
            task, rest = column.popleft().split(self.every)
            if rest is not None:
                column.appendleft(rest)
        else:
            task = column.pop()
            number = max(1, min(self.every, task.count // len(self.workers)))
            if task.count > number:
                rest, task = task.split(task.count - number)
                column.append(rest)
        self.given.setdefault(worker, []).append(task)
        return task

    def _find(self, worker) -> tuple[deque[Task], bool] | None:
        """A column with work for `worker`, and whether it is its own; may begin an epoch."""
        while not self.stopped:
            for number in sorted(self.left):
                columns = self.left[number]
                if own := columns.get(worker):
                    return own, True
                # A column whose worker is lost, or will not reach the end soon
                long = {
                    q: sum(task.count for task in column) - (q in self.workers)
                    for q, column in columns.items()
                    if self.helps or q not in self.workers
                }
                longest = max(long, key=long.get, default=None)
                if long.get(longest, 0) > 0:
                    return columns[longest], False
            oldest = min(self.left, default=self.begun)  # to wait for stopped workers
            if self.begun >= self.last or self.begun > oldest + self.ahead:
                break
            self.open_next()
        return None


class TasksOfGroups(AsynchronousTasks):
    """Each worker is a group, which gets its columns of two epochs at once, and waits for no other.

    After a wait it would go on from weights without all that other groups had done meanwhile.
    """

    ahead, helps = inf, False

    def next(self, worker) -> Task | None:
        begun = {task.epoch for task in self.given.get(worker, ())}
        return super().next(worker) if worker in self.workers and len(begun) < 2 else None


class SynchronousTasks(Tasks):
    """In each round all workers share the next `every` batches.

    When a worker is lost, the others continue with larger shares; its own share of the round is
    the next round.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.todo: set = set()  # workers that have not got their task of this round yet

    def columns(self, tasks: list[Task]) -> dict:
        return {None: deque(tasks)}

    def begin(self) -> None:
        if self.given or self.stopped or not self.workers:
            return
        column = next((c[None] for _, c in sorted(self.left.items()) if c[None]), None)
        if column is None:
            if self.begun < self.last:
                self.open_next()
                self.begin()
            return
        task, rest = column.popleft().split(self.every)
        if rest is not None:
            column.appendleft(rest)
        for j, worker in enumerate(self.workers):
            self.given[worker] = [task.divided(j, len(self.workers))]
        self.todo = set(self.workers)

    def next(self, worker) -> Task | None:
        if worker not in self.todo:
            return None
        self.todo.remove(worker)
        return self.given[worker][0]

    def lose(self, worker) -> None:
        super().lose(worker)
        self.todo.discard(worker)


def task_key(task: Task) -> tuple:
    """What tasks of one stream of batches have in common."""
    return task.epoch, task.order, task.size, task.share, task.shares


class TaskBatches:
    """Batches by task, for one rank of a worker.

    Batches that follow one another are read in order (and ahead, if the data support it); single
    ones that a worker takes over from others are read when they are needed.

    `seed` is that of the order of samples; the rank is number `device` of its worker's `devices`.
    """

    def __init__(
        self, data: Data, seed: int, device: int = 0, devices: int = 1, shuffle: bool = True
    ):
        self.data, self.device, self.devices = data, device, devices
        self.samples = len(data)
        self._given = {"seed": seed, "shuffle": shuffle}
        self._stream: Iterator[Batch] | None = None
        # ((epoch, order, size, share, shares), start, stop) of the stream's next batch
        self._next: tuple = ()
        self._after: tuple = ()  # (those, stop) of the last batch that was not the stream's next
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def batch(self, task: Task, number: int) -> Batch:
        """This rank's samples of the `number`-th batch of a task."""
        start, stop = task.batch(number)
        what = task_key(task)
        if (what, start, stop) != self._next and not self._begin(what, start, stop):
            return next(iter(self.data.read([[self.indices(what, start, stop)]])))
        self._next = what, stop, min(stop + task.size, self.samples)
        return next(self._stream)

    def _begin(self, what: tuple, start: int, stop: int) -> bool:
        """Begin to read on from this batch, if it is not a single one; return whether it did."""
        follows, self._after = self._after == (what, start), (what, stop)
        epoch, order, size, *_ = what
        whole = order == size and start % size == 0 and stop == min(start + size, self.samples)
        # Don't start to read ahead in another worker's column.
        if not whole or not (follows or self._stream is None or self._next[0][0] < epoch):
            return False
        self.close()
        rank, ranks = self._share(what)
        batches = Batches(self.data, size, **self._given, rank=rank, ranks=ranks)
        self._stream = batches.epoch(epoch, start // size)
        return True

    def close(self) -> None:
        if self._stream is not None:
            with suppress(ValueError):
                self._stream.close()
        self._stream, self._next = None, ()

    def indices(self, what: tuple, start: int, stop: int) -> np.ndarray:
        key = epoch, order = what[:2]
        if key not in self._orders:
            if len(self._orders) > 1:
                self._orders.clear()
            self._orders[key] = Batches(self.data, order, **self._given).order(epoch)
        return self._orders[key][start:stop][share(stop - start, *self._share(what))]

    def not_a_number(self, task: Task, number: int) -> int:
        """The sample of a batch of files that has a NaN or an infinity; -1 if there is none."""
        if not isinstance(self.data, Hdf5Data):
            return -1
        indices = self.indices(task_key(task), *task.batch(number))
        if self.data.not_a_number(indices) is None:
            return -1
        while len(indices) > 1:  # each look opens the files
            half = len(indices) // 2
            first = self.data.not_a_number(indices[:half]) is not None
            indices = indices[:half] if first else indices[half:]
        return int(indices[0])

    def _share(self, what: tuple) -> tuple[int, int]:
        """Which of how many shares of a batch is this rank's."""
        *_, number, shares = what
        return number * self.devices + self.device, shares * self.devices
