"""Checks of notebook 08, when a rank fails. `sums` runs on every rank, in a %%px cell."""

import numpy as np

from tutorial_dl.course.virtual_ranks import patient_team

from . import NotYet, close, every_rank, must_be_function, must_return
from .ranks_agree import aborting

SHAPE = np.array([1.0, 2.0])  # a batch, up to a factor


@every_rank
def sums(answer) -> str:
    """Check the sums of all rounds on every rank, with different numbers of batches per rank."""
    team = patient_team()
    rank, size = team.rank, team.size
    must_be_function(answer)
    # One batch fewer on the last rank, as in the text; then many fewer on the first.
    for counts in ([3] * (size - 1) + [2], [1] + [4] * (size - 1)):
        with aborting(team):
            # One decimal digit per rank, so that a wrong sum tells whose batches are in it.
            found = answer(team, [(k + 1) * 10.0**rank * SHAPE for k in range(counts[rank])])
            _judge_sums(found, counts, rank)
            team.barrier()
    return "all ranks came to every allreduce, and have the sums of all rounds"


def _judge_sums(found, counts: list[int], rank: int) -> None:
    must_return(found)
    rounds = max(counts)
    if not isinstance(found, (list, tuple, np.ndarray)) or len(found) != rounds:
        many = f"{len(found)} sums" if hasattr(found, "__len__") else f"{found!r}"
        raise NotYet(
            f"rank {rank}, with {counts[rank]} batches, returns {many}; the ranks have {counts} "
            f"batches, so there must be {rounds}"
        )
    for k in range(rounds):
        right = sum((k + 1) * 10.0**r for r, count in enumerate(counts) if count > k) * SHAPE
        close(found[k], right, f"the sum of round {k} (from 0)", rtol=1e-9)
