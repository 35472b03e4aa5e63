"""What is common to exercises in which messages go round a ring of ranks."""

import numpy as np

from tutorial_dl.words import counted

from .answers import NotYet


def must_be_a_ring(
    sent: list[tuple[int, int]],
    rank: int,
    ranks: int,
    steps: int,
    longest: int | None = None,
    either_way: bool = True,
) -> None:
    """Raise NotYet unless the sum on this rank was found by the messages of a ring.

    Args:
        sent: (target, how many numbers) of each message of this rank
        steps: how many messages a ring sends per rank, all to the same neighbour
        longest: the most numbers that a message may have
        either_way: whether the ring may turn to the left, too
    """
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    targets, sizes = [dest for dest, _ in sent], [size for _, size in sent]
    ways = [[right] * steps, [left] * steps] if either_way else [[right] * steps]
    if targets not in ways:
        if not either_way and targets == [left] * steps:
            raise NotYet("the sum is right, but your ring turns to the left: who is on the right?")
        if len(targets) != steps and len(set(targets)) <= 1:
            raise NotYet(
                f"the sum is right, but after {counted(len(targets), 'message')} per rank; "
                f"a ring needs {steps}"
            )
        raise NotYet(
            f"the sum is right, but rank {rank} sent to ranks {listed(targets)}; in a ring a rank "
            "sends to one neighbour only"
        )
    if longest is not None and max(sizes, default=0) > longest:
        raise NotYet(
            f"the sum is right, but messages had {counted(max(sizes), 'number')}; a chunk has at "
            f"most {longest}"
        )


def whose(x: np.ndarray, weights: np.ndarray, ranks: int) -> list[int] | None:
    """How often each rank's values are in `x`; None if `x` is no sum of ranks' values.

    Those of rank r are weights 10^r: one decimal digit per rank, so that a sum tells what is in it.
    """
    totals = x / weights
    if not (np.isfinite(totals).all() and np.ptp(totals) == 0 and 0 <= totals[0] < 10**ranks):
        return None
    if totals[0] != round(totals[0]):
        return None
    return [int(totals[0]) // 10**rank % 10 for rank in range(ranks)]


def listed(ranks: list[int]) -> str:
    """Numbers of ranks as text: "0, 2, 3"."""
    return ", ".join(map(str, ranks))
