"""How fast one master serves its workers: a queue that its customers come back to.

W workers compute for c seconds each, then ask the one master for an exchange, which takes it s
seconds and which they wait for; then they compute again. Updates a second of all together:

    nobody ever waits for another             W / (c + s)
    the master never waits for anybody        1 / s
    so at most                                min(W / (c + s), 1 / s),      equal at W = 1 + c / s

That bound is met where all times are the same: the workers soon come one after the other, at even
distances. Where times vary at random some come together, and then the master has nobody. With
exponentially distributed c and s this is the machine repairman of the textbooks (Erlang's formula
for finitely many sources): with r = s / c the master is idle with the probability

    1 / P = sum over k = 0..W of W! / (W - k)! r^k        updates a second: (1 - P) / s

L. Kleinrock, Queueing systems, volume 1 (1975), section 3.8 (M/M/1//M).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


def saturation(compute: float, serve: float) -> float:
    """1 + c / s: from so many workers on, the master is busy all the time.

    Parameters
    ----------
    compute : c, seconds from a worker's answer to its next request.
    serve : s, seconds that an exchange takes the master.

    Raises
    ------
    ValueError : compute below 0, or serve that is not above 0.

    >>> saturation(0.030, 0.010)
    4.0
    """
    _check(1, compute, serve)
    return 1 + compute / serve


def regular_throughput(workers: int, compute: float, serve: float) -> float:
    """Updates a second where all gradients and all exchanges take the same time: the bound above.

    Parameters
    ----------
    workers : W, 0 or more.
    compute, serve : seconds; see `saturation`.

    Raises
    ------
    ValueError : as `saturation`, or workers below 0.

    >>> [round(regular_throughput(W, 0.010, 0.010)) for W in (1, 2, 3)]
    [50, 100, 100]
    """
    _check(workers, compute, serve)
    return min(workers / (compute + serve), 1 / serve)


def random_throughput(workers: int, compute: float, serve: float) -> float:
    """Updates a second where times are exponentially distributed, with these means.

    Worker by worker: who asks, as the W-th, finds on average the queue Q that the other W - 1 would
    have alone (Reiser and Lavenberg, J. ACM 27 (1980) 313), so its answer takes s (1 + Q). Equal to
    Erlang's formula above, without its large numbers. Arguments and errors: `regular_throughput`.

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
    """What a master does, exchange by exchange, if each of its times is known.

    Parameters
    ----------
    compute : seconds of each worker's gradients, (workers, k): it stops when one has no more.
    serve : seconds of the exchanges, in the order in which they are served, (updates,).

    Returns
    -------
    A row an exchange: worker, and the seconds when it asked, was taken, and had its answer;
    shape (exchanges, 4), exchanges <= updates. All begin to compute at 0.

    >>> first_come_first_served([[2.0, 2.0], [2.0, 2.0]], [1.0] * 3).tolist()
    [[0.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0], [0.0, 5.0, 5.0, 6.0]]
    """
    compute = np.asarray(compute, float)
    asks = [(own[0], worker) for worker, own in enumerate(compute)]  # when, who
    heapq.heapify(asks)
    done, made, rows = 0.0, [1] * len(compute), []
    for seconds in serve:
        asked, worker = heapq.heappop(asks)
        taken = max(done, asked)
        done = taken + seconds
        rows.append((worker, asked, taken, done))
        if made[worker] == compute.shape[1]:
            break
        heapq.heappush(asks, (done + compute[worker, made[worker]], worker))
        made[worker] += 1
    return np.array(rows).reshape(-1, 4)


def _check(workers: int, compute: float, serve: float) -> None:
    if workers < 0:
        raise ValueError(f"{workers} workers; 0 or more is right")
    if not compute >= 0:
        raise ValueError(f"a gradient takes {compute} seconds; 0 or more is right")
    if not serve > 0:
        raise ValueError(f"an exchange takes {serve} seconds; above 0 is right")
