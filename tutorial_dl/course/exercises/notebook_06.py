"""Checks of notebook 06, synchronous training. `average` runs on every rank, in a %%px cell."""

import numpy as np

from tutorial_dl.course.virtual_ranks import patient_team

from . import NotYet, call_on_ranks, close, must_be_whole, must_have, must_not_be, must_reduce_once


def average(answer) -> str:
    """Check that every rank gets the gradient of the whole batch, in one allreduce."""
    team = patient_team()
    rank, size = team.rank, team.size
    counts = [*range(size - 1), size]  # on four ranks: 0, 1, 2 and 4 samples
    samples = sum(counts)
    shares = np.split(np.arange(samples), np.cumsum(counts)[:-1])
    gradients = [_mean_gradient(share) for share in shares]
    right = _mean_gradient(np.arange(samples))  # what one process gets, on all samples
    g = gradients[rank].copy()
    found = call_on_ranks(answer, team, g, counts[rank])
    hint = f"this is the mean of means; here ranks have {counts} samples"
    must_not_be(found, right, {hint: sum(gradients) / size}, f"rank {rank}")
    close(found, right, f"rank {rank}: the gradient", rtol=1e-12)
    must_reduce_once(team, "the gradient")
    if not np.array_equal(g, gradients[rank]):
        raise NotYet(f"rank {rank}: the gradient is right, but g itself has changed")
    return f"rank {rank}, with {counts[rank]} of {samples} samples, has the gradient of all"


def ranks(answer) -> str:
    """Check (fastest number of ranks from 1 to 8, its speed-up) on the machine of the exercise."""
    seconds = {p: 0.4e-3 + 10e-6 * 512 / p + 0.2e-3 / p for p in range(1, 9)}
    seconds |= {p: t + 2 * p * 10**6 * 4 / 20e9 for p, t in seconds.items() if p > 1}
    best = min(seconds, key=seconds.get)
    must_have(answer, 2, "two numbers: the number of ranks, and the speed-up")
    p, faster = answer
    must_be_whole(p, 1, 8, "the number of ranks")
    if p != best:
        longer = f"{seconds[p] / seconds[best] - 1:.1%} longer"
        raise NotYet(f"a step with ranks = {p} takes {longer} than with the fastest number")
    close(faster, seconds[1] / seconds[best], f"the speed-up of {best} ranks", rtol=0.01)
    return (
        f"a step on {best} ranks takes {1e3 * seconds[best]:.2f} ms, "
        f"on one {1e3 * seconds[1]:.2f}, on 8 {1e3 * seconds[8]:.2f}"
    )


def _mean_gradient(samples: np.ndarray) -> np.ndarray:
    """The mean gradient, where that of sample k is (k, 1, k^2); zeros if there are no samples."""
    if not len(samples):
        return np.zeros(3)
    return np.array([samples.mean(), 1, (samples**2).mean()])
