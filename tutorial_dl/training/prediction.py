"""How much faster p ranks should be, from what one rank was measured to do.

A synchronous step on p ranks of one node, for a batch of B samples and n parameters:

    T(p) = [ c(B/p) + u/p ] max(1, p / cores) + 2 p n b / M

c(s): seconds of a gradient on s samples; u: seconds of an update of all n parameters; ranks beyond
the cores take turns; and the reduction moves 2 p n b bytes (b a number) through memory that
carries M bytes a second. Waiting for the slowest rank is not in it: what is measured is slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np


def step_seconds(
    ranks: int,
    gradient_seconds: Mapping[int, float],
    update_seconds: float,
    parameters: int,
    cores: int,
    bytes_per_second: float,
    itemsize: int = 4,
) -> float:
    """T(p) above; `gradient_seconds[p]` is c(B/p)."""
    compute = (gradient_seconds[ranks] + update_seconds / ranks) * max(1, ranks / cores)
    moved = 2 * ranks * parameters * itemsize if ranks > 1 else 0
    return compute + moved / bytes_per_second


def speed_up(ranks: int, **measured) -> float:
    """T(1) / T(p), with what `step_seconds` takes."""
    return step_seconds(1, **measured) / step_seconds(ranks, **measured)


def profile(trainer, ranks: Sequence[int] = (1, 2, 4)) -> dict:
    """What `step_seconds` wants to know of a model and its optimizer, measured on this rank alone.

    Args:
        trainer: its replica, optimizer, data and batch size are used; its weights stay as they are
        ranks: the batch is timed cut into so many shares

    Returns {"gradient_seconds": {p: c(B/p) in s}, "update_seconds": u in s}, medians both.
    """
    replica, optimizer, train = trainer.replica, trainer.optimizer, trainer.dataset.train
    batch_size = min(trainer.batches.batch_size, len(train))
    gradient = {}
    for p in ranks:
        batch = train.take(slice(0, -(-batch_size // p)))  # the largest share
        gradient[p] = median_seconds(lambda batch=batch: replica.compute_gradient(batch))
    weights, g = replica.parameters.copy(), np.zeros_like(replica.gradient)
    state = optimizer.init(weights.size, weights.dtype, replica.segments)
    update = median_seconds(lambda: optimizer.update(weights, g, state))
    return {"gradient_seconds": gradient, "update_seconds": update}


def median_seconds(call: Callable[[], object], least: int = 5, seconds: float = 0.2) -> float:
    """Median time of `call()`, repeated `least` times or for `seconds`, whichever is longer.

    One call before that is not counted: it may compile, or fetch what later ones find in caches.
    """
    call()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def copy_bandwidth(mib: int = 64, repeats: int = 5) -> float:
    """Bytes a second, read and written, that one core copies in arrays beyond its caches."""
    source = np.ones(mib << 20, np.uint8)
    target = np.empty_like(source)
    target[:] = source
    best = np.inf
    for _ in range(repeats):
        started = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - started)
    return 2 * source.nbytes / best
