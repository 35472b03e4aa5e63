"""Who sends what to whom, and when, in each of the five message algorithms: plain data.

kernel.py sends exactly these messages, as both take the steps of each rank from the algorithm's
file; costs.py predicts their time, and a test compares it with this. Figures draw them. No MPI and
no Numba are needed. (two_level.py has no schedule of its own: its lanes use one of these between
nodes.)
"""

from typing import NamedTuple

from . import naive, rabenseifner, recursive_doubling, ring, tree
from .fold import folding
from .steps import COPIES

__all__ = ["SCHEDULES", "Message", "Rounds", "folding", "rounds"]

# name: the function steps(rank, ranks) of its file
SCHEDULES = {
    "naive": naive.steps,
    "tree": tree.steps,
    "ring": ring.steps,
    "recursive_doubling": recursive_doubling.steps,
    "rabenseifner": rabenseifner.steps,
}


class Message(NamedTuple):
    """One message: chunks [first, last) of a vector that is cut into `chunks`."""

    source: int  # rank
    target: int  # rank
    first: int
    last: int
    chunks: int  # 1: the whole vector; where chunks begin: elementwise.bounds
    adds: bool  # the target adds what arrives to its own values; otherwise it overwrites them

    @property
    def fraction(self) -> float:
        """Length of the message in lengths of the vector."""
        return (self.last - self.first) / self.chunks


Rounds = list[list[Message]]


def rounds(algorithm: str, ranks: int) -> Rounds:
    """Return the messages of `algorithm`, a key of `SCHEDULES`, as a list of rounds.

    The messages of a round are sent at the same time. In a round a rank sends at most one message
    and receives at most one.

    Example:
        >>> for messages in rounds("naive", 3):
        ...     print([(m.source, m.target, m.adds) for m in messages])
        [(1, 0, True)]
        [(2, 0, True)]
        [(0, 1, False)]
        [(0, 2, False)]
    """
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    if algorithm not in SCHEDULES:
        raise ValueError(f"unknown algorithm {algorithm!r}; choose one of {', '.join(SCHEDULES)}")
    all_steps = [SCHEDULES[algorithm](rank, ranks) for rank in range(ranks)]
    return [
        [
            Message(rank, step.to, *step.sent, step.chunks, at_once[step.to].does != COPIES)
            for rank, step in enumerate(at_once)
            if step.to >= 0
        ]
        for at_once in zip(*all_steps, strict=True)
    ]
