"""Messages between masters and leaves: records of numbers, in the header of a message (star.py).

A request begins with its Kind; an answer is an `Answer`. What follows, by kind:

PUSH, RELAY, REPORT    a Report
EVALUATED              a part, the number of parts, samples, sums of metrics over them ...
NOT_FINITE             0 for the loss or 1 for the gradient; the rank, or 0: the sender's
LOST, ENDED            a rank; an epoch
COUNTS                 0 for updates by staleness or 1 for shares by rank; (number, count) ...
REST                   a Rest (tasks.py)
UNDONE                 number of the message, epochs begun, one or two Rests (`Ledger`)
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    PULL = 1  # asks for the master's weights
    PUSH = 2  # a worker's vector, for the rule
    RELAY = 3  # a sub-master's vector, for the rule
    REPORT = 4  # no vector: reports what was done, or only asks for an order
    SNAPSHOT = 5  # asks for the weights to validate
    EVALUATED = 6  # metrics of a part of the validation data
    NOT_FINITE = 7  # the loss or the gradient is not finite
    WAITS = 8  # a sub-master has nothing left to hand out
    ENDED = 10  # sub-master: an epoch is done and in the weights
    LOST = 11  # sub-master: a worker of it is lost
    COUNTS = 12  # sub-master: updates by staleness, or shares by rank
    LEFT = 13  # sub-master: it has no workers left
    REST = 14  # sub-master without workers: remaining work
    UNDONE = 15  # sub-master: work that is not done once its next vector is in the weights
    FINAL = 9  # asks for the final weights


class Order(IntEnum):
    GO_ON = 1
    TRAIN = 2
    EVALUATE = 3
    DONE = 4
    GIVEN_UP = 5  # the worker took so long that others have done its work
    ADOPT = 6  # to a sub-master: take over this work from another one


class Report(NamedTuple):
    """What a leaf has done, sent with its vector or alone."""

    kind: int  # PUSH, RELAY or REPORT
    epoch: int = 0
    samples: float = 0.0
    loss: float = 0.0  # the sum over the samples
    steps: float = 0.0  # a worker's shares, or a group's steps; 0: nothing was done
    weight: float = 0.0  # in a round, in samples; gradients that overflowed do not count
    updates: float = 0.0  # of a group
    staleness: float = 0.0  # the sum over its updates

    @classmethod
    def of_words(cls, words) -> Report:
        return cls(int(words[0]), int(words[1]), *words[2:8])

    def plus(self, other: Report) -> Report:
        """Both together, with this one's kind and epoch."""
        return Report(*self[:2], *(a + b for a, b in zip(self[2:], other[2:], strict=True)))


class Answer(NamedTuple):
    order: int  # what to do next
    updates: int  # of the whole run so far
    stopping: bool = False  # whether the run is to end
    about: list[float] = []  # noqa: RUF012 - of a Task to TRAIN, `part` to EVALUATE, Rest to ADOPT

    @classmethod
    def of_words(cls, words) -> Answer:
        order, updates, stopping, *about = words
        return cls(int(order), int(updates), bool(stopping), about)

    @property
    def part(self) -> tuple[int, int]:
        """To EVALUATE: the number of the part, and the number of parts."""
        return int(self.about[0]), int(self.about[1])


METRICS = 12  # metrics that fit in a message
PAIRS = 7  # pairs of COUNTS that fit in a message
