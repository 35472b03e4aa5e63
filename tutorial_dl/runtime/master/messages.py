"""Messages between masters and leaves, and among the ranks of a worker: records of numbers.

A request is a Kind and the record that RECORDS has for it; an answer is an `Answer`. Both are sent
in the head of a star's message (star.py), where zeros follow them. `flat` gives a record's numbers,
and `record_of` makes the record of them again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from .tasks import Task
from .validation import Evaluated, Part


class Kind(IntEnum):
    PULL = 1  # asks for the master's weights
    PUSH = 2  # has a vector, for the rule
    REPORT = 3  # no vector: reports what was done, or only asks for an order
    SNAPSHOT = 4  # asks for the weights to validate
    EVALUATED = 5  # metrics of a part of the validation data
    NOT_FINITE = 6  # the loss or the gradient is not finite
    FINAL = 7  # asks for the final weights
    # From sub-masters only:
    WAITS = 8  # nothing is left to hand out: asks for an order when there is one
    LOST = 9  # a worker is lost
    COUNTS = 10  # updates by staleness, or shares by rank
    LEFT = 11  # no worker is left


class Order(IntEnum):
    GO_ON = 1
    TRAIN = 2
    EVALUATE = 3
    DONE = 4
    GIVEN_UP = 5  # the worker took so long that others have done its work


PAIRS = 7  # pairs of Counts that fit in a message
PIECES = 4  # stretches of places that fit in a Report


def record_of(kind, words):
    """The record of class `kind` in the words of a message: of whole numbers if it can't say."""
    if hasattr(kind, "of_words"):
        return kind.of_words(words)
    return kind(*map(int, words[: len(kind._fields)]))


def flat(record: tuple) -> list[float]:
    """The numbers of a record, those of records in it included."""
    numbers: list[float] = []
    for item in record:
        numbers += flat(item) if isinstance(item, tuple) else (item,)
    return numbers


class Report(NamedTuple):
    """What a leaf has done, sent with its vector or alone."""

    epoch: int = 0
    samples: float = 0.0
    loss: float = 0.0  # the sum over the samples
    steps: float = 0.0  # a worker's shares, or a group's steps; 0: nothing was done
    weight: float = 0.0  # in a round, in samples; gradients that overflowed do not count
    updates: float = 0.0  # of a group
    staleness: float = 0.0  # the sum over its updates
    done: tuple[tuple[int, int], ...] = ()  # by a group: places [start, stop) of the epoch's order

    @classmethod
    def of_words(cls, words) -> Report:
        if not words[8]:  # as of every worker
            return cls(int(words[0]), *words[1:7])
        ends = map(int, words[7:15])
        done = tuple(pair for pair in zip(ends, ends, strict=True) if pair[1])
        return cls(int(words[0]), *words[1:7], done)

    def plus(self, other: Report) -> Report:
        """Both together, with this one's epoch."""
        return Report(self.epoch, *(a + b for a, b in zip(self[1:], other[1:], strict=True)))


class NotFiniteAt(NamedTuple):
    gradient: int  # 1 for the gradient, 0 for the loss
    rank: int = 0  # in the run; 0: the sender's
    sample: int = -1  # of files, if it has a NaN


class Lost(NamedTuple):
    rank: int  # in the run


class Counts(NamedTuple):
    of_ranks: int  # 1 for shares by rank, 0 for updates by staleness
    pairs: tuple[tuple[int, int], ...]  # (rank or staleness, count) ...

    @classmethod
    def of_words(cls, words) -> Counts:
        of_ranks, *numbers = map(int, words)
        pairs = zip(numbers[::2], numbers[1::2], strict=False)
        return cls(of_ranks, tuple(pair for pair in pairs if pair[1]))


RECORDS = {
    Kind.PUSH: Report, Kind.REPORT: Report, Kind.EVALUATED: Evaluated,
    Kind.NOT_FINITE: NotFiniteAt, Kind.LOST: Lost, Kind.COUNTS: Counts,
}  # fmt: skip


def request_of(words: list[float]) -> tuple[int, tuple]:
    """The kind of a request, and its record, which is empty where RECORDS has none."""
    kind = int(words[0])
    return kind, record_of(RECORDS[kind], words[1:]) if kind in RECORDS else ()


ABOUT = {Order.TRAIN: Task, Order.EVALUATE: Part}


class Answer(NamedTuple):
    order: int  # what to do next
    updates: int = 0  # of the whole run so far
    stopping: bool = False  # whether the run is to end
    about: Task | Part | tuple = ()  # what to train on or to evaluate

    @classmethod
    def of_words(cls, words) -> Answer:
        order, updates, stopping, *about = words
        about = record_of(ABOUT[order], about) if order in ABOUT else ()
        return cls(int(order), int(updates), bool(stopping), about)
