"""Checks of notebook 06, synchronous training. `average` runs on every rank, in a %%px cell."""

import numpy as np

from tutorial_dl.course.virtual_ranks import patient_team

from . import NotYet, call_on_ranks, close, every_rank, must_be, must_have, whole
from .ranks_agree import must_reduce, must_reduce_once


@every_rank
def average(answer) -> str:
    """Check that every rank gets the gradient of the whole batch, in one allreduce."""
    team = patient_team()
    rank, size = team.rank, team.size
    counts = [*range(0, 2 * size - 2, 2), 2 * size - 1]  # on four ranks: 0, 2, 4 and 7 samples
    samples = sum(counts)
    shares = np.split(np.arange(samples), np.cumsum(counts)[:-1])
    gradients = [_mean_gradient(share) for share in shares]
    right = _mean_gradient(np.arange(samples))  # what one process gets, on all samples
    g = gradients[rank].copy()
    found = call_on_ranks(answer, team, g, counts[rank])
    must_reduce(team)
    mistakes = {
        f"this is the mean of means; here ranks have {counts} samples": sum(gradients) / size,
        "this is a sum over the samples; divide by the samples of all ranks": right * samples,
        "this is the sum of the ranks' means": sum(gradients),
        "divide by the number of all samples, not by the number of ranks": right * samples / size,
    }
    if counts[rank]:
        hint = "divide by the number of all samples, not by this rank's"
        mistakes[hint] = right * samples / counts[rank]
    close(found, right, "the gradient", mistakes)
    must_reduce_once(team, "the gradient")
    if not np.array_equal(g, gradients[rank]):
        raise NotYet("the gradient is right, but g itself has changed; work on a copy")
    return f"all ranks, with {counts} samples, have the gradient of all {samples}"


def ranks(answer) -> str:
    """Check (fastest number of ranks from 1 to 8, its speed-up) on the machine of the exercise."""
    seconds = {p: _step(p) for p in range(1, 9)}
    best = min(seconds, key=seconds.get)
    p, faster = must_have(answer, 2, "two numbers: the number of ranks, and the speed-up")
    p = whole(p, 1, 8, "the number of ranks")
    if p != best:
        longer = f"{seconds[p] / seconds[best] - 1:.1%} longer"
        raise NotYet(f"a step with ranks = {p} takes {longer} than with the fastest number")
    one, fast, alone = seconds[1], seconds[best], _step(1, alone=True)
    fixed, once = 0.4e-3 * (1 - 1 / best), _step(best, moved=1)
    mistakes = {
        "it is T(1) / T(p), not the other way round": fast / one,
        "it is a ratio of times; this is the time of a step in ms": 1e3 * fast,
        "on one rank nothing is exchanged: for p = 1 the last term is 0": alone / fast,
        "the update is missing": (one - 0.2e-3) / (fast - 0.2e-3 / best),
        "this is what the speed-up would be if all work were divided": best,
        "this is the efficiency, the speed-up per rank": one / fast / best,
    }
    times = {
        "the exchange is missing": _step(best, moved=0),
        "each gradient is read and each rank's weights are written: two times p n b": once,
        "all ranks' bytes go through one memory: is the p there?": _step(best, 2 / best),
        "float32 has 4 bytes per weight": _step(best, moved=4),
        "4 bytes per weight: yours counts weights, not bytes": _step(best, moved=1 / 2),
        "the update is divided among the ranks, too": fast + 0.2e-3 * (1 - 1 / best),
        "the 0.4 ms of a gradient do not shrink with the number of samples": fast - fixed,
    }
    mistakes |= {hint: one / seconds for hint, seconds in times.items()}
    must_be(faster, one / fast, "the speed-up", mistakes, units=False)
    return (
        f"a step on {best} ranks takes {1e3 * seconds[best]:.2f} ms, "
        f"on one {1e3 * seconds[1]:.2f}, on 8 {1e3 * seconds[8]:.2f}"
    )


def _step(p: int, moved: float = 2, alone: bool = False) -> float:
    """T(p) in seconds: `moved` p n b bytes go through memory, on one rank only if `alone`."""
    exchange = moved * p * 10**6 * 4 / 20e9 if p > 1 or alone else 0
    return 0.4e-3 + 10e-6 * 512 / p + 0.2e-3 / p + exchange


def _mean_gradient(samples: np.ndarray) -> np.ndarray:
    """The mean gradient, where that of sample k is (k, 1, k^2); zeros if there are no samples."""
    if not len(samples):
        return np.zeros(3)
    return np.array([samples.mean(), 1, (samples**2).mean()])
