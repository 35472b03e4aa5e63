"""Rabenseifner's allreduce: reduce-scatter by halving, then allgather by doubling.

Halving: in each round a rank sends half of the part it still holds to a partner, receives the
other half from it, and adds. Doubling reverses this: each round exchanges twice as much.

    place 0   [0 1 2 3]  -> keeps [0 1], sends [2 3] to 2  -> keeps [0], sends [1] to 1
    place 1   [0 1 2 3]  -> keeps [0 1], sends [2 3] to 3  -> keeps [1], sends [0] to 0
    place 2   [0 1 2 3]  -> keeps [2 3], sends [0 1] to 0  -> keeps [2], sends [3] to 3
    place 3   [0 1 2 3]  -> keeps [2 3], sends [0 1] to 1  -> keeps [3], sends [2] to 2

Cost: 2L alpha + 2n(p-1)/p beta + n(p-1)/p gamma with L = log2 p: as many bytes as the ring with far
fewer messages; folding (fold.py) allows any number of ranks. Rabenseifner, ICCS 2004; Thakur et al.
(2005), section 4.4.
"""

from .fold import folded
from .steps import ADDS, COPIES, ENDS, Step, Steps


def steps(rank: int, ranks: int) -> Steps:
    return folded(rank, ranks, halving_and_doubling)


def halving_and_doubling(place: int, group: int) -> Steps:
    sizes = [group >> k for k in range(1, group.bit_length())]

    def held(place: int, size: int) -> tuple[int, int]:
        """The chunks that `place` holds when it holds `size` of them."""
        return place - place % size, place - place % size + size

    for size in sizes:
        mine, theirs = held(place, size), held(place ^ size, size)
        does = ENDS if size == 1 else ADDS
        yield Step(place ^ size, place ^ size, does, theirs, mine, group)
    for size in reversed(sizes):
        mine, theirs = held(place, size), held(place ^ size, size)
        yield Step(place ^ size, place ^ size, COPIES, mine, theirs, group)
