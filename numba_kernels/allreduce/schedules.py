"""Who sends what to whom, and when, in each of the five message algorithms: plain data.

The kernels (naive.py, tree.py, ring.py, recursive_doubling.py, rabenseifner.py) send exactly these
messages, and costs.py predicts their time; tests compare both with this file. (two_level.py has no
schedule of its own: its lanes use one of these between nodes.) Figures draw them. No MPI and no
Numba are needed.
"""

from typing import NamedTuple


class Message(NamedTuple):
    """One message: chunks [first, last) of a vector that is cut into `chunks`."""

    source: int  # rank
    target: int  # rank
    first: int
    last: int
    chunks: int  # 1: the whole vector; where chunks begin: elementwise.bounds
    adds: bool  # the target adds what arrives to its own values; otherwise it overwrites them

    @property
    def part(self) -> float:
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
    return SCHEDULES[algorithm](ranks)


def naive(ranks: int) -> Rounds:
    others = range(1, ranks)
    return [[whole(r, 0, True)] for r in others] + [[whole(0, r, False)] for r in others]


def tree(ranks: int) -> Rounds:
    distances = [1 << k for k in range((ranks - 1).bit_length())]
    pairs = [[(r, r + d) for r in range(0, ranks - d, 2 * d)] for d in distances]
    up = [[whole(b, a, True) for a, b in level] for level in pairs]
    return up + [[whole(a, b, False) for a, b in level] for level in pairs[::-1]]


def ring(ranks: int) -> Rounds:
    def step(number: int, adds: bool) -> list[Message]:
        chunk = [(r - 1 - number) % ranks for r in range(ranks)]
        return [
            Message(r, (r + 1) % ranks, chunk[r], chunk[r] + 1, ranks, adds) for r in range(ranks)
        ]

    return [step(k, k < ranks - 1) for k in range(2 * (ranks - 1))]


def recursive_doubling(ranks: int) -> Rounds:
    group, extra = folding(ranks)
    distances = [1 << k for k in range(group.bit_length() - 1)]
    between = [[whole(a, a ^ d, True) for a in range(group)] for d in distances]
    return folded(between, extra)


def rabenseifner(ranks: int) -> Rounds:
    group, extra = folding(ranks)
    sizes = [group >> k for k in range(1, group.bit_length())]

    def part(place: int, size: int) -> tuple[int, int, int]:
        """The chunks that `place` holds when it holds `size` of them."""
        return place - place % size, place - place % size + size, group

    halving = [[Message(a, a ^ s, *part(a ^ s, s), True) for a in range(group)] for s in sizes]
    doubling = [
        [Message(a, a ^ s, *part(a, s), False) for a in range(group)] for s in reversed(sizes)
    ]
    return folded(halving + doubling, extra)


_all = (naive, tree, ring, recursive_doubling, rabenseifner)
SCHEDULES = {schedule.__name__: schedule for schedule in _all}


def whole(source: int, target: int, adds: bool) -> Message:
    return Message(source, target, 0, 1, 1, adds)


def folding(ranks: int) -> tuple[int, int]:
    """Return (largest power of two up to `ranks`, number of ranks to fold in): see fold.py."""
    group = 1 << ranks.bit_length() - 1
    return group, ranks - group


def folded(between: Rounds, extra: int) -> Rounds:
    """Return the rounds of a group, numbered by rank, with `extra` ranks folded in and out."""
    if not extra:
        return between

    def rank_of(place: int) -> int:
        return 2 * place + 1 if place < extra else place + extra

    moved = [
        [m._replace(source=rank_of(m.source), target=rank_of(m.target)) for m in messages]
        for messages in between
    ]
    pairs = [(2 * i, 2 * i + 1) for i in range(extra)]
    fold = [whole(even, odd, True) for even, odd in pairs]
    return [fold, *moved, [whole(odd, even, False) for even, odd in pairs]]
