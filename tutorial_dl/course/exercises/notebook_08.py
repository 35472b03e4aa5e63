"""Checks of notebook 08, when a rank fails. Both run on every rank, in a %%px cell."""

from typing import Any

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


@every_rank
def persistently(answer) -> str:
    """Check that all ranks repeat work that failed on one, before or after its collective."""
    team = patient_team()
    rank, size = team.rank, team.size
    must_be_function(answer)
    with aborting(team):
        # Tries 1 and 2 fail on one rank each; the third one succeeds.
        work = _Work(team, before={1: 1 % size}, after={2: size - 1})
        result, error = _tried(answer, team, work, 4)
        if isinstance(error, TimeoutError):
            raise error
        if error:
            raise NotYet(f"after try {work.tries} of 4 it raised {_named(error)}")
        if work.tries < 3:
            culprit = (work.before | work.after).get(work.tries)
            raise NotYet(
                f"rank {rank} returned after try {work.tries}, which had failed on rank {culprit}: "
                "no rank may return before all have succeeded"
            )
        if work.tries > 3:
            raise NotYet(f"try 3 succeeded on all ranks, but there were {work.tries}")
        if result is None:
            raise NotYet("the function returns nothing; work() returned something")
        close(result, [size], "the result")

        hopeless = _Work(team, before=dict.fromkeys(range(1, 9), 0), after={})
        _, error = _tried(answer, team, hopeless, 2)
        if error is None:
            raise NotYet("both of 2 tries failed, and no error was raised")
        if hopeless.tries != 2:
            tries = hopeless.tries
            raise NotYet(f"tries = 2, but failing work was tried {tries} times")
        if error is not hopeless.error:
            raise NotYet(f"expected the error of the last try, got {_named(error)}")
    return "done at the third try; work that always fails was given up after two"


class _Work:
    """Adds up ones over the ranks; `before` and `after` map tries (1, 2, ...) to failing ranks.

    `error` is what the last try that failed has raised on this rank.
    """

    def __init__(self, team, before: dict[int, int], after: dict[int, int]):
        self.team, self.before, self.after, self.tries = team, before, after, 0
        self.error: Exception | None = None

    def __call__(self) -> np.ndarray:
        self.tries += 1
        try:
            if self.before.get(self.tries) == self.team.rank:
                raise OSError(f"try {self.tries}: can't read")
            total = self.team.allreduce(np.ones(1))
            if self.after.get(self.tries) == self.team.rank:
                raise ValueError(f"try {self.tries}: can't write")
        except Exception as error:
            self.error = error
            raise
        return total


def _tried(answer, team, work: _Work, tries: int) -> tuple[Any, Exception | None]:
    """What the learner's function returned, or the error of `work` or of the team it raised."""
    try:
        return answer(team, work, tries), None
    except NotImplementedError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        return None, error


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
