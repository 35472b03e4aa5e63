"""Measure how long messages, additions and allreduces take on this machine.

The cost formulas need these times. Results are numbers or small arrays, so that a notebook can pull
them from its engines.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np

QUIET = "TUTORIAL_DL_QUIET_MACHINE"


def expect(holds: bool, what: str) -> None:
    """Tell the reader if a measurement has not come out as it does on a quiet machine.

    With the environment variable TUTORIAL_DL_QUIET_MACHINE=1 it raises AssertionError.
    """
    if not holds and os.environ.get(QUIET, "0") != "0":
        raise AssertionError(what)
    if not holds:
        print(f"expected, but not measured: {what}; other programs may have disturbed this")


def ping_pong(comm, sizes: Sequence[int]) -> np.ndarray:
    """Measure the time of one message between ranks 0 and 1, by its size.

    The fastest of all repetitions counts, because other programs can only add time.

    Args:
        comm: an mpi4py communicator; its ranks 0 and 1 must call this together
        sizes: of the messages, in bytes, shape (k,)

    Returns:
        Seconds one way, shape (k,); each rank uses its own clock.
    """
    if comm.rank > 1 or comm.size < 2:
        raise ValueError(
            f"ping_pong is for ranks 0 and 1, called by rank {comm.rank} of {comm.size}"
        )
    other = 1 - comm.rank
    best = np.full(len(sizes), np.inf)
    for i, size in enumerate(sizes):
        x = np.zeros(size, np.uint8)
        for repeat in range(52):
            began = perf_counter()
            if comm.rank == 0:
                comm.Send(x, dest=other)
                comm.Recv(x, source=other)
            else:
                comm.Recv(x, source=other)
                comm.Send(x, dest=other)
            if repeat >= 2:  # the first ones set up the connection
                best[i] = min(best[i], (perf_counter() - began) / 2)
    return best


def fit(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Fit seconds = alpha + size beta by least squares of the relative errors.

    Relative, because a microsecond matters for a small message, not for a large one.
    Sizes are in bytes; returns the latency in s, and the time per byte in s/byte. ValueError if one
    of them would not be above 0.

    Example:
        >>> alpha, beta = fit(np.array([0, 1e6]), np.array([2e-6, 102e-6]))
        >>> round(alpha * 1e6, 3), round(1e-9 / beta, 3)  # µs, GB/s
        (2.0, 10.0)
    """
    seconds = np.asarray(seconds, float)
    A = np.stack([np.ones(len(sizes)), np.asarray(sizes, float)], axis=1) / seconds[:, None]
    alpha, beta = np.linalg.lstsq(A, np.ones(len(sizes)))[0]
    if alpha <= 0 or beta <= 0:
        raise ValueError(
            f"latency and time per byte must be above 0, got {alpha:.3g} s and {beta:.3g} s/byte;"
            " measure again"
        )
    return float(alpha), float(beta)


def addition(nbytes: int, repeats: int = 50) -> float:
    """Measure the seconds per byte of x of `x += y`, on float32 vectors of `nbytes`, at least 4.

    The fastest of `repeats` additions counts.
    """
    x, y = np.ones(nbytes // 4, np.float32), np.ones(nbytes // 4, np.float32)
    seconds = in_turns({"x += y": lambda: np.add(x, y, out=x)}, repeats)
    return float(seconds["x += y"].min()) / x.nbytes


def allreduce(team, x: np.ndarray, algorithm: str, batches: int = 7) -> np.ndarray:
    """Measure the time of one allreduce of `x`, in `batches` measurements.

    A cycle is what a training step does: the vector is written, reduced and read. The time of the
    same cycle without reducing is subtracted. (Without the writing and reading, a repeated
    allreduce finds its bytes in the caches where it left them, and looks faster than it is.)

    Args:
        team: all its ranks must call this together, with vectors of the same length
        x: is overwritten; from `team.empty` for algorithm "shared_memory"
        algorithm: as in `team.allreduce`
        batches: number of measurements; each times one cycle of a long vector, or up to 10 cycles
            of a short one

    Returns:
        Seconds per allreduce on the slowest rank, shape (batches,), the same on all ranks.
    """
    cycles = int(np.clip(2**19 // max(x.nbytes, 1), 1, 10))
    own = np.empty_like(x)

    def reduce():
        team.allreduce(x, algorithm=algorithm)

    _cycles(team, x, cycles, reduce)  # the first call may compile, and allocates memory
    times = [(_cycles(team, x, cycles, reduce), _cycles(team, own, cycles)) for _ in range(batches)]
    with_it, without = np.transpose(times)
    # The fastest cycle without reducing is subtracted, because other programs can only add time.
    return team.allreduce(with_it - without.min(), op="max")


def _cycles(team, x: np.ndarray, cycles: int, reduce=lambda: None) -> float:
    """Seconds per cycle: write `x`, reduce it, read it."""
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
    """Time each call; the calls take turns, so that a slow moment of the machine affects all.

    Args:
        calls: name -> what to time; each is first called once without timing, because the first
            call may compile and allocates memory
        rounds: how often each is timed
        before: called before each of them, not timed (a barrier; writing a gradient)
        after: called after each of them, and timed (a barrier, to wait for the slowest rank)

    Returns:
        name -> seconds, shape (rounds,).
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


def actions(tables: Sequence, kinds: str = "FBW") -> dict[str, list[float]]:
    """The median seconds of each kind of action, per rank, in a pipeline's timetables."""
    found = {(kind, rank): [] for rank in range(len(tables[0].schedule.ranks)) for kind in kinds}
    for span in (span for table in tables for span in table.spans if not span.action.message):
        found[span.action.kind, span.rank].append(span.end - span.begin)
    medians = {key: float(np.median(seconds)) for key, seconds in found.items()}
    return {kind: [t for (one, _), t in medians.items() if one == kind] for kind in kinds}
