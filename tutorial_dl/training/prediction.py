"""How much faster p ranks should be, from what one rank was measured to do.

A synchronous step on p ranks of one node, for a batch of B samples and n parameters:

    T(p) = [ c(B/p) + u/p ] max(1, p / cores) + 2 p n b / M

c(s): seconds of a gradient on s samples; u: seconds of an update of all n parameters; ranks beyond
the cores take turns; and the reduction moves 2 p n b bytes (b a number) through memory that
carries M bytes a second. Waiting for the slowest rank is not in it: what is measured is slower.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

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
