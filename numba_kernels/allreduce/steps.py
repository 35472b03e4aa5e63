"""The steps of one rank in an algorithm over messages: plain data, without MPI and Numba.

An algorithm is a function `steps(rank, ranks)` that yields the steps of a rank, as many on every
rank: what is step k of all ranks is sent at the same time (a *round*). kernel.py carries them out,
and schedules.py lists the messages of all ranks.
"""

from collections.abc import Iterator
from typing import NamedTuple

COPIES, ADDS, ENDS = range(3)  # what is done with what arrives; ENDS: it is added, as the last one


class Step(NamedTuple):
    """A message that is sent, and one that is received at the same time; a rank of -1: none.

    The vector is cut into `chunks`, of which chunks [first, last) travel. What arrives overwrites
    the rank's own values (COPIES) or is added to them (ADDS). After ENDS they are complete: for a
    mean they are divided.
    """

    to: int = -1
    source: int = -1
    does: int = COPIES
    sent: tuple[int, int] = (0, 1)
    received: tuple[int, int] = (0, 1)
    chunks: int = 1  # 1: the whole vector; where chunks begin: elementwise.bounds


Steps = Iterator[Step]
IDLE = Step()


def send(to: int) -> Step:
    """The step that sends the whole vector."""
    return Step(to=to)


def receive(source: int, does: int = COPIES) -> Step:
    return Step(source=source, does=does)
