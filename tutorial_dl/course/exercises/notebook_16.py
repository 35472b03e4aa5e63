"""Checks of notebook 16, splitting a layer. `loss` runs on every rank, in a %%px cell."""

import numpy as np

from tutorial_dl.course.virtual_ranks import patient_team

from . import NotYet, call_on_ranks, close, every_rank, must_be, number_of

WIDTH, HIDDEN, RANKS = 1024, 4096, 8  # exercise 1: a pair of layers, WIDTH to HIDDEN and back
SAMPLES, EACH = 5, 40  # exercise 2: samples, and classes per rank: many more than may travel
COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast")


def batch(answer) -> str:
    """Exercise 1: the samples per batch at which both ways reduce equally many bytes."""
    numbers = 2 * WIDTH * HIDDEN  # of the gradient
    mistakes = {
        "this is the width of what is reduced: it cancels, as both ways have it": WIDTH,
        "a step of the split pair reduces twice, forward and backward": 2 * HIDDEN,
        "the gradient is that of both matrices": HIDDEN / 2,
        "count numbers of both ways, or bytes of both": 4 * HIDDEN,
        "the number of ranks is the same for both: it cancels": HIDDEN * RANKS,
        "the gradient is whole on each rank, and so is the batch: no part by ranks": HIDDEN / RANKS,
        "this is the number of weights of one matrix": WIDTH * HIDDEN,
        "these are the numbers of the gradient: how many are reduced per sample?": numbers,
    }
    must_be(answer, HIDDEN, "samples per batch", mistakes, rtol=0.001, units=False)
    return "below it the split sends less: layers much wider than the batch is long"


@every_rank
def loss(answer) -> str:
    """Exercise 2: the mean cross-entropy of logits whose classes are cut over the ranks."""
    team = patient_team()
    noted = _note(team)
    rank, size = team.rank, team.size
    random = np.random.default_rng(16)
    for what, shift in (("small logits", 0.0), ("logits near 1000", 1000.0)):
        z = random.normal(size=(SAMPLES, EACH * size)) * 2  # (s, k)
        z[:, -1] += 4  # the largest logit is often on the last rank
        z += shift
        y = np.arange(SAMPLES) * 31 % (EACH * size)  # (s,), on several ranks
        mine = np.ascontiguousarray(z[:, EACH * rank : EACH * (rank + 1)])
        _judge(call_on_ranks(answer, team, mine.copy(), y.copy()), z, y, mine, what)
    numbers = sum(noted) / 2 / SAMPLES
    if not noted and size > 1:
        raise NotYet("right, but nothing went through `team`: use its collectives")
    if numbers > 4:
        raise NotYet(
            f"right, but this rank gave {numbers:.0f} numbers per sample to the collectives; three "
            "are enough: a maximum, a sum, and the logit of the label"
        )
    return f"{numbers:.0f} numbers per sample travelled, however many classes there are"


def _note(team) -> list[int]:
    """How many numbers this rank gives to the team's collectives, call by call."""
    noted: list[int] = []

    def noting(call):
        def noted_call(x, *more, **options):
            noted.append(np.size(x))
            return call(x, *more, **options)

        return noted_call

    for name in COLLECTIVES:
        setattr(team, name, noting(getattr(team, name)))
    return noted


def _judge(found, z: np.ndarray, y: np.ndarray, mine: np.ndarray, what: str) -> None:
    """Raise NotYet unless `found` is the loss of z (s, k): with the mistake, if it is a known one.

    `mine`: this rank's columns of z.
    """
    largest, of_label = z.max(axis=1), z[np.arange(SAMPLES), y]
    logsum = _logsum(z)
    right = (logsum - of_label).mean()
    if np.shape(found) == np.shape(y):
        raise NotYet("one number is asked for: the mean over the samples")
    if np.size(found) == 1 and not np.isfinite(np.asarray(found, float)).all() and z.max() > 700:
        raise NotYet(
            f"{what}: the loss is not finite: subtract the largest logit of all ranks before np.exp"
        )
    value = number_of(found, "the loss")
    mistakes = {
        "this is a sum over the samples; the mean is asked for": right * SAMPLES,
        "it has the wrong sign": -right,
        "the logit of the label is missing": logsum.mean(),
        "only this rank's classes are in the sum over classes": (_logsum(mine) - of_label).mean(),
        "what was subtracted before np.exp has to be added again": right - largest.mean(),
    }
    close(value, right, f"{what}: the loss", mistakes)


def _logsum(z: np.ndarray) -> np.ndarray:
    """The logarithm of the sum of e^z over the last axis."""
    largest = z.max(axis=-1, keepdims=True)
    return np.log(np.exp(z - largest).sum(axis=-1)) + largest[..., 0]
