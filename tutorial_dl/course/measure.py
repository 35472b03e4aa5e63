"""How long messages, additions and allreduces take here: what the cost formulas want to know.

All functions return small arrays of seconds, so that a notebook can pull them from its engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np


def ping_pong(comm, sizes: Sequence[int], repeats: int = 50) -> np.ndarray:
    """Seconds of one message one way between ranks 0 and 1, by its size: the best of `repeats`.

    Other programs only ever add time, so the best is what the machine can do.

    Args:
        comm: an mpi4py communicator; ranks 0 and 1 of it call this.
        sizes: bytes, shape (k,).

    Returns shape (k,), on each rank by its own clock.
    """
    if comm.rank > 1 or comm.size < 2:
        raise ValueError(f"rank {comm.rank} of {comm.size}: ping-pong is for ranks 0 and 1")
    other = 1 - comm.rank
    best = np.full(len(sizes), np.inf)
    for i, size in enumerate(sizes):
        x = np.zeros(size, np.uint8)
        for repeat in range(repeats + 2):
            began = perf_counter()
            if comm.rank == 0:
                comm.Send(x, dest=other)
                comm.Recv(x, source=other)
            else:
                comm.Recv(x, source=other)
                comm.Send(x, dest=other)
            if repeat >= 2:  # the first ones set things up
                best[i] = min(best[i], (perf_counter() - began) / 2)
    return best


def fit(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """(alpha in s, beta in s/byte) such that alpha + size beta is near `seconds`, relatively.

    Least squares of the relative errors: a microsecond counts for a small message, not for a
    large one. Raises ValueError where a negative latency or bandwidth would fit best.

    >>> alpha, beta = fit(np.array([0, 1e6]), np.array([2e-6, 102e-6]))
    >>> round(alpha * 1e6, 3), round(1e-9 / beta, 3)  # µs, GB/s
    (2.0, 10.0)
    """
    seconds = np.asarray(seconds, float)
    A = np.stack([np.ones(len(sizes)), np.asarray(sizes, float)], axis=1) / seconds[:, None]
    alpha, beta = np.linalg.lstsq(A, np.ones(len(sizes)))[0]
    if alpha <= 0 or beta <= 0:
        raise ValueError(f"latency {alpha:.3g} s and {beta:.3g} s/byte fit best: measure again")
    return float(alpha), float(beta)


def addition(nbytes: int, repeats: int = 50) -> float:
    """Seconds a byte of `x += y` on float32 vectors of `nbytes`: the best of `repeats`."""
    x, y = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
    best = np.inf
    for _ in range(repeats):
        began = perf_counter()
        x += y
        best = min(best, perf_counter() - began)
    return best / x.nbytes


def allreduce(team, x: np.ndarray, algorithm: str, batches: int = 7) -> np.ndarray:
    """Seconds of one allreduce of `x`, in `batches` measurements.

    Timed is the full cycle of a training step: the vector is written, reduced and read, and the
    same cycle without reducing is subtracted. (Repeated on a vector that nobody touches, a
    reduction finds its bytes where it left them, and looks faster than it is.)

    Args:
        team: all ranks of it call this, with vectors of one length.
        x: is overwritten. From `team.empty` for algorithm "shared_memory".
        batches: a batch is one cycle of a long vector, up to 10 of a short one.

    Returns shape (batches,), of the slowest rank, the same on all ranks.
    """
    cycles = int(np.clip(2**19 // max(x.nbytes, 1), 1, 10))
    own = np.empty_like(x)

    def reduce():
        team.allreduce(x, algorithm=algorithm)

    _cycles(team, x, cycles, reduce)  # the first call may compile, and fetches memory
    with_it = np.empty(batches)
    without = np.empty(batches)
    for i in range(batches):
        with_it[i] = _cycles(team, x, cycles, reduce)
        without[i] = _cycles(team, own, cycles)
    # The slowest rank's time of each batch, and the fastest cycle without: other programs only add.
    return team.allreduce(with_it - without.min(), op="max")


def _cycles(team, x: np.ndarray, cycles: int, reduce=lambda: None) -> float:
    """Seconds of a cycle: write `x`, reduce it, read it."""
    team.barrier()
    began = perf_counter()
    for _ in range(cycles):
        x.fill(1)
        reduce()
        x.sum()
    return (perf_counter() - began) / cycles


def in_turns(
    calls: Mapping[str, Callable[[], object]],
    rounds: int = 9,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> dict[str, np.ndarray]:
    """Seconds of each call, the calls taking turns, so that a slow moment is everyone's.

    Args:
        calls: name -> what to time; each is called once more at first, which is not counted: it
            may compile, and fetches memory.
        rounds: how often each is timed.
        before: called before each of them, not timed (a barrier; writing a gradient).
        after: called after each of them, and timed (a barrier, to wait for the slowest rank).

    Returns name -> shape (rounds,).
    """
    seconds = {name: np.empty(rounds) for name in calls}
    for turn in range(-1, rounds):
        for name, call in calls.items():
            before()
            began = perf_counter()
            call()
            after()
            if turn >= 0:
                seconds[name][turn] = perf_counter() - began
    return seconds
