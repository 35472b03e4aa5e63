"""The throughput of one master that serves W workers: a closed queue (machine repairman model).

Each worker computes for c seconds, then asks the one master for an exchange, which takes the master
s seconds and for which the worker waits; then it computes again. Updates per second of all workers:

    no worker ever waits for another one      W / (c + s)
    the master is never idle                  1 / s
    so at most                                min(W / (c + s), 1 / s),      equal at W = 1 + c / s

This bound is reached if all times are the same: the workers soon arrive one after the other, at
equal intervals. If times vary at random, some workers arrive together, and at other times the
master is idle. With exponentially distributed c and s this is the machine repairman model of the
textbooks (Erlang's formula for finitely many sources). With r = s / c, the master is idle with the
probability P:

    1 / P = sum over k = 0..W of W! / (W - k)! r^k        updates per second: (1 - P) / s

L. Kleinrock, Queueing systems, volume 1 (1975), section 3.8 (M/M/1//M).
"""

from collections.abc import Sequence

import numpy as np

from tutorial_dl.simulate.clock import SimulatedClock


def saturation(compute: float, serve: float) -> float:
    """Return 1 + c / s, the number of workers from which on the master is always busy.

    Args:
        compute: c, seconds from an answer to a worker until its next request, at least 0
        serve: s, seconds per exchange at the master, above 0

    Example:
        >>> saturation(0.030, 0.010)
        4.0
    """
    _check(1, compute, serve)
    return 1 + compute / serve


def regular_throughput(workers: int, compute: float, serve: float) -> float:
    """Return the updates per second if all gradients and exchanges take equal times (the bound).

    Example:
        >>> [round(regular_throughput(W, 0.010, 0.010)) for W in (1, 2, 3)]
        [50, 100, 100]
    """
    _check(workers, compute, serve)
    return min(workers / (compute + serve), 1 / serve)


def random_throughput(workers: int, compute: float, serve: float) -> float:
    """Return the updates per second if times are exponentially distributed with these means.

    By mean value analysis, one worker at a time: when the W-th worker asks, it finds on average the
    queue Q that the other W - 1 would have without it (Reiser and Lavenberg, J. ACM 27 (1980) 313),
    so its answer takes s (1 + Q). The result equals Erlang's formula above, without its large
    numbers.

    Example:
        >>> [random_throughput(W, 0.010, 0.010) for W in (1, 2, 3)]
        [50.0, 80.0, 93.75]
    """
    _check(workers, compute, serve)
    throughput = queue = 0.0
    for here in range(1, workers + 1):
        answer = serve * (1 + queue)  # seconds from a request to its answer
        throughput = here / (compute + answer)
        queue = throughput * answer  # mean number of workers that are not computing
    return throughput


def first_come_first_served(
    compute: Sequence[Sequence[float]] | np.ndarray, serve: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Simulate the master exchange by exchange, from known times.

    All workers begin to compute at 0 s. The simulation stops when a worker has no gradient left.

    Args:
        compute: seconds of each worker's gradients, shape (workers, k)
        serve: seconds of the exchanges, in the order in which they are served, shape (updates,)

    Returns:
        One row per exchange, shape (exchanges, 4), exchanges <= updates: the worker, and the times
        in seconds when it asked, when its exchange began, and when it had its answer.

    Example:
        >>> first_come_first_served([[2.0, 2.0], [2.0, 2.0]], [1.0] * 3).tolist()
        [[0.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], [0.0, 5.0, 5.0, 6.0]]
    """
    clock, done, rows = SimulatedClock(), 0.0, []
    left = [iter(own) for own in np.asarray(compute, float)]
    for worker, own in enumerate(left):
        clock.after(next(own), worker)
    for seconds in serve:
        worker = clock.next()
        taken = max(done, clock.now())
        rows.append((worker, clock.now(), taken, taken + seconds))
        done = taken + seconds
        computed = next(left[worker], None)
        if computed is None:
            break
        clock.after(done - clock.now() + computed, worker)
    return np.array(rows).reshape(-1, 4)


def _check(workers: int, compute: float, serve: float) -> None:
    if workers < 0:
        raise ValueError(f"workers must be at least 0, got {workers}")
    if not compute >= 0:
        raise ValueError(f"compute must be at least 0 seconds, got {compute}")
    if not serve > 0:
        raise ValueError(f"serve must be above 0 seconds, got {serve}")
