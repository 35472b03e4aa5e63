"""Predict the speed-up of p ranks from what is measured on one rank.

A synchronous step on p ranks of one node, for a batch of B samples and n parameters:

    T(p) = [ c(B/p) + u/p ] max(1, p / cores) + 2 p n b / M

c(s) is the time of a gradient on s samples, u the time of an update of all n parameters, both in
seconds. Where c(B/p) was measured as less than c(B)/p, because other programs used the machine, it
is c(B)/p. If there are more ranks than cores, they take turns. The reduction moves 2 p n b bytes,
with b bytes per number, through memory that carries M bytes per second. Waiting for the slowest
rank is not included, so measured steps take longer.
"""

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
    """T(p) of the module's docstring, in seconds.

    Args:
        ranks: p
        gradient_seconds: c(B/p) by p, for p = `ranks` and, if it was measured, p = 1
        update_seconds: u
        parameters: n
        cores: cores of the node
        bytes_per_second: M
        itemsize: b, bytes per number

    Example:
        >>> step_seconds(2, {2: 0.010}, 0.002, 10**6, cores=4, bytes_per_second=1e10)
        0.0126
    """
    gradient = max(gradient_seconds[ranks], gradient_seconds.get(1, 0) / ranks)
    compute = (gradient + update_seconds / ranks) * max(1, ranks / cores)
    moved = 2 * ranks * parameters * itemsize if ranks > 1 else 0
    return compute + moved / bytes_per_second


def speed_up(ranks: int, **measured) -> float:
    """T(1) / T(p) for p = `ranks`; `measured` are the other arguments of `step_seconds`."""
    return step_seconds(1, **measured) / step_seconds(ranks, **measured)


def profile(trainer, ranks: Sequence[int] = (1, 2, 4)) -> dict:
    """Measure, on this rank alone, what `step_seconds` needs of a model and its optimizer.

    Args:
        trainer: its replica, optimizer, data and batch size are used; its weights do not change
        ranks: the values of p for which c(B/p) is measured

    Returns:
        {"gradient_seconds": {p: c(B/p)}, "update_seconds": u}, medians in seconds.
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
    """Median seconds of `call()`, repeated `least` times or for `seconds`, whichever takes longer.

    One call before these is not counted: it may compile, or fill caches that later calls use.
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
    """Bytes per second, read plus written, when one core copies arrays larger than its caches."""
    source = np.ones(mib << 20, np.uint8)
    target = np.empty_like(source)
    target[:] = source
    best = np.inf
    for _ in range(repeats):
        started = time.perf_counter()
        target[:] = source
        best = min(best, time.perf_counter() - started)
    return 2 * source.nbytes / best
