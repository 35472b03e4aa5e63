"""Message protocol between masters and leaves: numbers in the header of a message (star.py).

requests     KIND  EPOCH  SAMPLES  LOSS (a sum over samples)  SHARES
             PUSH: also the number of samples in the mean gradient, without overflows
             RELAY, and REPORT of a sub-master: also UPDATES  STALENESS (a sum over updates)
             COUNTS: KIND  what  (number, how often) ...
             UNDONE: KIND  number of the message  epochs begun  the words of one or two ADOPTs
             EVALUATED: KIND  CHUNK  CHUNKS  SAMPLES  sums of metrics over samples ...
answers      ORDER  UPDATES  STOP  numbers of a task, or CHUNK and CHUNKS, or
             ADOPT: EPOCH  FIRST  COUNT  LOW  HIGH  PARTS (tasks.Rest)
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The kind of a request."""

    PULL = 1  # asks for the master's weights
    PUSH = 2  # a worker's vector, for the rule
    RELAY = 3  # a sub-master's vector, for the rule
    REPORT = 4  # no vector: reports what was done, or only asks for an order
    SNAPSHOT = 5  # asks for the weights to validate
    EVALUATED = 6  # metrics of a part of the validation data
    NOT_FINITE = 7  # the loss (word 1 is 0) or the gradient (1) is not finite
    WAITS = 8  # a sub-master has nothing left to hand out
    ENDED = 10  # sub-master: an epoch is done and in the weights
    LOST = 11  # sub-master: its worker on rank EPOCH is lost
    COUNTS = 12  # sub-master: updates by staleness (0), or shares by rank (1)
    LEFT = 13  # sub-master: it has no workers left
    REST = 14  # sub-master without workers: remaining work, the words of an ADOPT
    UNDONE = 15  # sub-master: work that is not done once its next vector is in the weights
    FINAL = 9  # asks for the final weights


class Order(IntEnum):
    """The order in an answer."""

    GO_ON = 1
    TRAIN = 2
    EVALUATE = 3
    DONE = 4
    GIVEN_UP = 5  # the worker took so long that others have done its work
    ADOPT = 6  # to a sub-master: take over this work from another one


TASK = 3  # index of the first word of a task or chunk
METRICS = 12  # metrics that fit in a message
PAIRS = 7  # pairs of COUNTS that fit in a message
