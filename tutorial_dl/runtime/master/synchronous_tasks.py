"""`SynchronousTasks`: all workers of a master share each batch (tasks.py).

When a worker fails, the others continue with larger shares. The share that it had begun is added to
one of the next rounds, as an extra piece of a batch.
"""

from collections import deque
from fractions import Fraction
from math import gcd, lcm

from .tasks import Rest, Task, Tasks, runs


class SynchronousTasks(Tasks):
    """The tasks of one master's workers, for synchronous rules; `every`: batches per round."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.low, self.width = min(self.columns.values()), len(self.columns)
        self.workers = sorted(self.columns, key=self.columns.get)
        self.number, self.position = self.first, 0
        # Pieces of this epoch that lost workers have left: (position, low, high, parts)
        self.pieces: deque[tuple[int, int, int, int]] = deque()
        self.later: list[tuple] = []  # number, position and pieces of epochs to return to
        self._ended: list[int] = []
        # The results of `save`, `undone` and `begun` during a round
        self._before: tuple[list[dict], list[Rest], int] = [], [], self.first

    def resume(self, saved: list[dict]) -> None:
        for n, each in enumerate(sorted(saved, key=lambda each: -each["epoch"])):
            if n:
                self.later.append((self.number, self.position, self.pieces))
            self.number, self.position = each["epoch"], each["position"]
            self.pieces = deque(self._own(tuple(piece)) for piece in each["pieces"])
        if saved:
            self._end_of_round()

    def _own(self, piece: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """This master's share of a piece that its workers and those of others have left."""
        if self.width == self.parts:
            return piece
        position, low, high, parts = piece
        edges = (low * self.parts + (high - low) * (self.low + k) for k in (0, self.width))
        return position, *_reduced(*edges, parts * self.parts)

    def begin(self) -> None:
        if not self.between or self.stopped or not self.workers:
            return
        self._take_adopted()
        if self.number >= self.last:
            return
        self._before = self._place(), self._undone(), self.begun
        first, count = self.position, min(self.every, self.positions - self.position)
        whole = self.low, self.low + self.width, self.parts
        self.position += count
        more = self.pieces.popleft() if self.pieces else None
        if not count:  # only pieces of lost workers are left of this epoch
            (first, *whole), count, more = more, 1, None
        for j, worker in enumerate(self.workers):
            share, piece = _share(*whole, j, len(self.workers)), (-1, 0, 1, 1)
            if more is not None:
                piece = more[0], *_share(*more[1:], j, len(self.workers))
            self.todo[worker] = Task(self.number, self.size, first, count, *share, piece)

    def next(self, worker: int) -> Task | None:
        if worker not in self.todo:
            return None
        self.given[worker] = self.todo.pop(worker)
        return self.given[worker]

    def _done(self, task: Task) -> None:
        if self.between:
            self._end_of_round()

    def _end_of_round(self) -> None:
        while self.position == self.positions > 0 and not self.pieces:
            self._ended.append(self.number)
            if self.later:
                self.number, self.position, self.pieces = self.later.pop()
            else:
                self.number, self.position = self.number + 1, 0

    def lose(self, worker: int) -> None:
        self.workers.remove(worker)
        task = self.todo.pop(worker, None) or self.given.pop(worker, None)
        if task is None:
            return
        self.pieces += [(at, task.low, task.high, task.parts) for at in task.positions]
        if task.more[0] >= 0:
            self.pieces.append(task.more)
        self._done(task)

    # From one master to another: without a round in progress, which is not in the weights

    @property
    def begun(self) -> int:
        if not self.between:
            return self._before[2]
        found, begun = {n: at or pieces for n, at, pieces in self._open()}, self._open()[-1][0] + 1
        while not found.get(begun - 1, True):  # an epoch that is not in `found` is done
            begun -= 1
        return begun

    def undone(self) -> list[Rest]:
        return [*self.adopted, *(self._undone() if self.between else self._before[1])]

    def _undone(self) -> list[Rest]:
        rest = []
        for number, first, pieces in self._begun():
            by_share: dict[tuple, list[int]] = {}
            for position, *share in pieces:
                by_share.setdefault(tuple(share), []).append(position)
            for share, positions in by_share.items():
                rest += [Rest(number, *run, *share) for run in runs(positions)]
            rest += self.of_epoch(number, first)
        return rest

    def of_epoch(self, number: int, first: int = 0) -> list[Rest]:
        """All work of an epoch, from position `first` on."""
        left, whole = self.positions - first, (self.low, self.low + self.width, self.parts)
        return [Rest(number, first, left, *whole)] if left else []

    def _clear(self) -> None:
        self.number, self.pieces, self.later = self.last, deque(), []

    def _open(self) -> list[tuple]:
        """Number, position and pieces of epochs that are not done, in order."""
        found = [(self.number, self.position, self.pieces), *self.later]
        return sorted(found, key=lambda one: one[0])

    def _begun(self) -> list[tuple]:
        """As `_open`, up to the last epoch that was begun."""
        found = self._open()
        while found and not (found[-1][1] or found[-1][2]):
            found.pop()
        return found

    def _take_adopted(self) -> None:
        """Add adopted work of this epoch to its rounds; for an earlier epoch, go back to it."""
        due = [rest for rest in self.adopted if rest.epoch <= self.number]
        if not due:
            return
        first = min(rest.epoch for rest in due)
        if first < self.number:
            self.later.append((self.number, self.position, self.pieces))
            self.number, self.position, self.pieces = first, self.positions, deque()
        for rest in [rest for rest in due if rest.epoch == first]:
            self.adopted.remove(rest)
            self.pieces += [(at, rest.low, rest.high, rest.parts) for at in rest.positions]

    def complete(self) -> list[int]:
        again = {rest.epoch for rest in self.adopted}  # these will end once more
        found, self._ended = [epoch for epoch in self._ended if epoch not in again], []
        return found

    @property
    def _more(self) -> bool:
        return self.number < self.last or bool(self.adopted or self._ended)

    def save(self) -> list[dict]:
        return self._place() if self.between else self._before[0]

    def entry(self, number: int, rests: list[Rest]) -> dict:
        # A position from which on whole batches are left, and pieces before it
        shares: dict[int, list[tuple[int, int, int]]] = {}
        for rest in rests:
            for position in rest.positions:
                shares.setdefault(position, []).append(rest[3:])
        position = self.positions
        while _whole(shares.get(position - 1, ())):
            position -= 1
            del shares[position]
        pieces = [(at, *share) for at in sorted(shares) for share in _joined(shares[at])]
        return {"epoch": number, "position": position, "pieces": pieces}

    def _place(self) -> list[dict]:
        # Epochs that ended are not yet returned by `complete`.
        ended = [(number, self.positions, ()) for number in self._ended]
        return [
            {"epoch": number, "position": position, "pieces": list(pieces)}
            for number, position, pieces in [*sorted(ended), *self._begun()]
        ]


def _whole(shares) -> bool:
    """Whether these shares (low, high, parts), which do not overlap, make up a whole batch."""
    return sum(Fraction(high - low, parts) for low, high, parts in shares) == 1


def _joined(shares) -> list[tuple[int, int, int]]:
    """The same samples in fewer shares, with neighbours joined."""
    parts = lcm(*(parts for *_, parts in shares))
    found: list[tuple[int, int]] = []
    for low, high in sorted((low * parts // of, high * parts // of) for low, high, of in shares):
        if found and found[-1][1] == low:
            low = found.pop()[0]
        found.append((low, high))
    return [_reduced(low, high, parts) for low, high in found]


def _reduced(low: int, high: int, parts: int) -> tuple[int, int, int]:
    """The same share as a reduced fraction, as numbers grow with every resumed run."""
    by = gcd(low, high, parts)
    return low // by, high // by, parts // by


def _share(low: int, high: int, parts: int, j: int, of: int) -> tuple[int, int, int]:
    """The j-th of `of` equal shares of [low, high) / parts.

    >>> _share(1, 2, 3, 0, 2)
    (2, 3, 6)
    """
    width = high - low
    return low * of + width * j, low * of + width * (j + 1), parts * of
