"""What masters and those below them say to each other: numbers in the head of a message (star.py).

from below   KIND  EPOCH  SAMPLES  LOSS (a sum over samples)  SHARES
             PUSH: also of how many samples the gradient is the mean: of overflows there is none
             RELAY, and REPORT of a sub-master: also UPDATES  STALENESS (a sum over updates)
             COUNTS: KIND  what  (number, how often) ...
             UNDONE: KIND  number of the message  epochs begun  an ADOPT's words, or those of two
             EVALUATED: KIND  CHUNK  CHUNKS  SAMPLES  sums of metrics over samples ...
from above   ORDER  UPDATES  STOP  numbers of a task, or CHUNK and CHUNKS, or
             ADOPT: EPOCH  FIRST  COUNT  LOW  HIGH  PARTS (tasks.Rest)
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """What a request is."""

    PULL = 1  # give me your weights
    PUSH = 2  # here is a vector, by the rule of a worker
    RELAY = 3  # by the rule of a sub-master
    REPORT = 4  # no vector: what was done, or only: what next?
    SNAPSHOT = 5  # give me the weights that are to be validated
    EVALUATED = 6  # metrics of a part of the validation data
    NOT_FINITE = 7  # the loss (0) or the gradient (1), as word 1 says, is no number
    WAITS = 8  # a sub-master has nothing left to hand out
    ENDED = 10  # a sub-master: all of an epoch is done, and in the weights
    LOST = 11  # a sub-master: a worker of it, on rank EPOCH
    COUNTS = 12  # a sub-master: of updates by staleness (0), of shares by rank (1)
    LEFT = 13  # a sub-master: no worker of it is left
    REST = 14  # a sub-master without workers: what was to be done, the words of an ADOPT
    UNDONE = 15  # a sub-master: what is not done, when what it sends next is in the weights
    FINAL = 9  # give me the weights that training ended with


class Order(IntEnum):
    """What comes back."""

    GO_ON = 1
    TRAIN = 2
    EVALUATE = 3
    DONE = 4
    GIVEN_UP = 5  # it took so long that others have done its work
    ADOPT = 6  # to a sub-master: take this over from another one


TASK = 3  # the first word of what an order is about
METRICS = 12  # that fit
PAIRS = 7  # of COUNTS that fit
