"""`AsynchronousTasks`: each worker goes down its own column of shares (tasks.py)."""

from collections import deque
from dataclasses import dataclass

from .tasks import Rest, Task, Tasks, runs


@dataclass
class Epoch:
    """Positions of each column not yet handed out in one epoch; `open`: number not yet done."""

    number: int
    parts: int
    columns: dict[int, deque[int]]

    def __post_init__(self):
        self.open = sum(len(column) for column in self.columns.values())


class AsynchronousTasks(Tasks):
    """The tasks of one master's workers, for asynchronous rules."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.begun = self.first
        self.epochs: dict[int, Epoch] = {}
        self.lost: set[int] = set()

    def resume(self, saved: list[dict]) -> None:
        own = sorted(self.columns.values())
        for each in saved:
            left = {q: deque(rest) for q, *rest in each["left"] if q % self.parts in own}
            epoch = Epoch(each["epoch"], each["parts"], left)
            self.epochs[epoch.number] = epoch
            self.begun = max(self.begun, epoch.number + 1)

    # Handing out

    def next(self, worker: int) -> Task | None:
        found = None if self.stopped else self._own(worker) or self._others(worker)
        while found is None and not self.stopped and self._may_begin:
            columns = {q: deque(range(self.positions)) for q in self.columns.values()}
            self.epochs[self.begun] = Epoch(self.begun, self.parts, columns)
            self.begun += 1
            adopted, self.adopted = self.adopted, []
            for rest in adopted:
                self.adopt(rest)
            found = self._own(worker) or self._others(worker)
        if found is not None:
            self.given[worker] = found
        return found

    @property
    def _may_begin(self) -> bool:
        """Whether the next epoch may begin; at most one ahead, to wait for stopped workers."""
        oldest = min(self.epochs, default=self.begun)
        return self.begun < self.last and self.begun <= oldest + 1

    def _own(self, worker: int) -> Task | None:
        queue = self.columns[worker]
        for epoch in self.epochs.values():
            if column := epoch.columns.get(queue):
                first, count = column.popleft(), 1
                while count < self.every and column and column[0] == first + count:
                    column.popleft()
                    count += 1
                return self._task(epoch, queue, first, count)
        return None

    def _others(self, worker: int) -> Task | None:
        """A share of a column whose worker is lost, or will not reach it soon."""
        kept = {queue for w, queue in self.columns.items() if w not in self.lost}
        for epoch in self.epochs.values():
            left = {q: len(column) - (q in kept) for q, column in epoch.columns.items()}
            longest = max(left, key=lambda q: (left[q], -q), default=None)
            if longest is not None and left[longest] > 0:
                return self._task(epoch, longest, epoch.columns[longest].pop(), 1)
        return None

    def _task(self, epoch: Epoch, queue: int, first: int, count: int) -> Task:
        size = self.size // self.parts * epoch.parts  # equal shares in an epoch cut for others
        return Task(epoch.number, size, first, count, queue, queue + 1, epoch.parts)

    # From one master to another

    def undone(self) -> list[Rest]:
        rest = list(self.adopted)
        for epoch in self.epochs.values():
            left = {queue: set(column) for queue, column in epoch.columns.items()}
            for task in self.given.values():
                if task.epoch == epoch.number:
                    left[task.low].update(task.positions)
            for q, positions in left.items():
                rest += [Rest(epoch.number, *run, q, q + 1, epoch.parts) for run in runs(positions)]
        return rest

    def of_epoch(self, number: int) -> list[Rest]:
        columns = sorted(self.columns.values())
        return [Rest(number, 0, self.positions, q, q + 1, self.parts) for q in columns]

    def _clear(self) -> None:
        self.begun = self.last
        self.epochs.clear()

    def adopt(self, rest: Rest) -> None:
        if rest.epoch >= self.begun:
            self.adopted.append(rest)
            return
        epoch = self.epochs.setdefault(rest.epoch, Epoch(rest.epoch, rest.parts, {}))
        epoch.columns.setdefault(rest.low, deque()).extend(rest.positions)
        epoch.open += rest.count

    # Results

    def _done(self, task: Task) -> None:
        self.epochs[task.epoch].open -= task.count

    def lose(self, worker: int) -> None:
        self.lost.add(worker)
        if (task := self.given.pop(worker, None)) is not None:
            self.epochs[task.epoch].columns[task.low].extendleft(reversed(task.positions))

    def complete(self) -> list[int]:
        found = []
        for number in sorted(self.epochs):
            if self.epochs[number].open:
                break
            found.append(number)
            del self.epochs[number]
        return found

    @property
    def _more(self) -> bool:
        return self.begun < self.last or bool(self.epochs)

    def save(self) -> list[dict]:
        rest = self.undone()
        return [self.entry(n, [one for one in rest if one.epoch == n]) for n in self.epochs]

    def entry(self, number: int, rests: list[Rest]) -> dict:
        left: dict[int, set[int]] = {}
        for rest in rests:
            left.setdefault(rest.low, set()).update(rest.positions)
        parts = rests[0].parts if rests else self.parts
        columns = [[q, *sorted(positions)] for q, positions in sorted(left.items())]
        return {"epoch": number, "parts": parts, "left": columns}
