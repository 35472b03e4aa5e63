"""Checks of notebook 07, kernels.

`ring` rehearses a ring allreduce in this process; `ring_on_ranks` runs it on every rank, in a %%px
cell. Both check it step by step.
"""

import numpy as np

from numba_kernels.errors import PeerError
from tutorial_dl.course.virtual_ranks import Patient, RehearsalRank, rehearse

from . import NotYet, counted, every_rank, must_be, must_be_a_ring, must_be_function, must_have
from .answers import number_of
from .own_line import told
from .rings import listed, whose

# (ranks, vector length): even chunks first, then uneven ones, then some empty ones.
CASES = ((4, 8), (2, 6), (3, 7), (5, 13), (4, 3), (1, 4))


def trips(answer) -> str:
    """Check (numbers moved per weight by SGD with momentum in numpy, and in one pass)."""
    parts = must_have(answer, 2, "two numbers: one for numpy, one for a single pass")
    numpys, one = (number_of(part, "the number") for part in parts)
    if one == 1 and numpys == 4:
        raise NotYet("these are the numbers of passes; count what goes through memory in each pass")
    if (numpys, one) == (5, 11):
        raise NotYet("the two are swapped: numpy's number comes first")
    four = {
        "t is written without having been read, so its cache lines are fetched first": 10,
        "what is changed in place is read and written: v *= mu counts twice": 8,
        "this counts what is read; what is written goes through memory, too": 6,
        "this is in bytes; numbers are asked for": 44,
    }
    must_be(numpys, 11, "numpy, per weight", four, rtol=1e-9, units=False)
    single = {
        "v and w are read and written": 3,
        "v stays in memory between steps, as w does: it is read and written": 4,
        "in one pass t is never in memory": 7,
        "this is in bytes; numbers are asked for": 20,
    }
    must_be(one, 5, "one pass, per weight", single, rtol=1e-9, units=False)
    return "w and v are read and written, g is read; all other traffic of numpy is for t"


def ring(answer) -> str:
    """Check a ring allreduce by rehearsal: on 1 to 5 ranks, with vectors of several lengths."""
    must_be_function(answer)
    for ranks, n in CASES:
        runs = rehearse(answer, [_vector(rank, n) for rank in range(ranks)])
        try:
            _judge_all(runs)
        except NotYet as wrong:
            raise NotYet(f"{counted(ranks, 'rank')}, {counted(n, 'number')}: {wrong}") from None
    return "the sum on every rank, for 1 to 5 ranks and chunks of any length; now on real ranks"


@every_rank
def ring_on_ranks(answer) -> str:
    """Check the same on the ranks that run the cell; each rank checks itself."""
    from mpi4py import MPI

    must_be_function(answer)
    p, rank = MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank
    n = 2 * p + 1  # chunks differ in length
    comm = Patient(MPI.COMM_WORLD, watched=_vector(rank, n))
    answer(comm, comm.watched)
    comm.note()
    if not _is_sum(comm, p):
        steps = range(_last(p) + 1)
        raise NotYet(next(filter(None, (_wrong(comm, step, rank, p) for step in steps))))
    must_be_a_ring(comm.sent, rank, p, _last(p), longest=-(-n // p))
    return f"all {p} ranks have the whole sum, after {_last(p)} messages of one chunk each"


# Judging ---------------------------------------------------------------------------------------
#
# Element i is (i + 1) 10^rank: one decimal digit per rank, so that a sum tells whose values are in
# it. Whichever chunk a ring begins with, three things hold on every rank. No value is ever added
# twice. After step k of the first p - 1, the chunk that has just come in has the values of k + 1
# ranks. After step k of the remaining steps, k - p + 2 chunks are complete.


def _vector(rank: int, n: int) -> np.ndarray:
    return (np.arange(n) + 1) * 10.0**rank


def _last(p: int) -> int:
    """Number of steps of a ring of p ranks."""
    return 2 * (p - 1)


def _judge_all(runs: list[RehearsalRank]) -> None:
    """Raise NotYet for the first thing that went wrong on any rank."""
    p = len(runs)
    errors = [(rank, run.error) for rank, run in enumerate(runs) if run.error]
    own = [(rank, error) for rank, error in errors if not _patience(error)]
    if own:
        rank, error = own[0]
        if isinstance(error, NotImplementedError):
            raise error
        raise NotYet(f"rank {rank}: {told(error)}")
    if errors or not all(_is_sum(run, p) for run in runs):
        for step in range(_last(p) + 1):
            for rank, run in enumerate(runs):
                known = step < len(run.states) or not run.error
                if known and (wrong := _wrong(run, step, rank, p)):
                    raise NotYet(wrong)
    # First ranks that timed out, then ranks that were told to stop.
    for _, error in sorted(errors, key=lambda each: _patience(each[1])):
        raise NotYet(error)
    for rank, run in enumerate(runs):
        must_be_a_ring(run.sent, rank, p, _last(p), longest=-(-run.watched.size // p))


def _patience(error: BaseException) -> int:
    return 2 if isinstance(error, PeerError) else int(isinstance(error, TimeoutError))


def _is_sum(run: Patient | RehearsalRank, p: int) -> bool:
    places = np.arange(run.watched.size) + 1
    return np.array_equal(run.states[-1], places * ((10**p - 1) // 9))


def _wrong(run: Patient | RehearsalRank, step: int, rank: int, p: int) -> str | None:
    """Say what is wrong on a rank after `step` exchanges; None if nothing is."""
    if step >= len(run.states):
        made = len(run.states) - 1
        return f"rank {rank} made {counted(made, 'exchange')}; a ring of {p} ranks makes {_last(p)}"
    if step and not run.error and np.array_equal(run.states[-1], run.states[0]):
        return f"rank {rank}: x has not changed; the sum must be in x itself"
    # If there were too many exchanges, judge the final state.
    x = run.states[-1] if step == _last(p) else run.states[step]
    chunks = np.array_split(np.arange(x.size), p)
    held = [_whose(x[chunk], chunk, p) for chunk in chunks]  # ranks' values in each, how often
    when = f"after step {step}, rank {rank}" if step else f"before the first step, rank {rank}"
    for number, times in enumerate(held):
        if times is None:
            return f"{when}: chunk {number} {_stranger(x, chunks, number, p)}"
        if often := [r for r in range(p) if times[r] > 1]:
            return f"{when}: chunk {number} has the values of rank {listed(often)} more than once"
    return _lacking(held, chunks, step, when, p)


def _lacking(held: list, chunks: list, step: int, when: str, p: int) -> str | None:
    """Say which values are missing on a rank; None if none are."""
    filled = [number for number, chunk in enumerate(chunks) if chunk.size]
    counts = {number: sum(held[number]) for number in filled}
    if step < p:
        # If some chunks are empty, the fullest one need not have k + 1 ranks' values.
        fullest = max(counts, key=counts.get, default=None)
        if len(filled) == p and counts[fullest] < step + 1:
            there = listed([r for r in range(p) if held[fullest][r]])
            return (
                f"{when}: no chunk has the values of {step + 1} ranks; the fullest, chunk "
                f"{fullest}, has those of rank {there}"
            )
        return None
    missing = {c: [r for r in range(p) if not held[c][r]] for c in filled if counts[c] < p}
    if len(missing) > _last(p) - step:
        worst = min(missing, key=counts.get)
        return (
            f"{when}: {len(filled) - len(missing)} chunks are complete instead of {step - p + 2}; "
            f"chunk {worst} lacks the values of rank {listed(missing[worst])}"
        )
    return None


def _whose(x: np.ndarray, places: np.ndarray, p: int) -> list[int] | None:
    """How often each rank's values are in `x`, elements `places` of a vector; None if not a sum."""
    if not places.size:
        return [0] * p
    times = whose(x, places + 1, p)
    return times if times and max(times) <= p else None


def _stranger(x: np.ndarray, chunks: list, number: int, p: int) -> str:
    """Say which other chunk's values are in chunk `number`, if they come from one other chunk.

    Its own values are a (i + 1), those of a chunk d elements further on are b (i + d + 1): the
    slope of their sum in i is a + b, and what remains is b d.
    """
    places, found = chunks[number] + 1, x[chunks[number]]
    if places.size > 1 and np.isfinite(found).all():
        left = found - (found[1] - found[0]) * places
        for other, chunk in enumerate(chunks):
            if other != number and chunk.size and np.ptp(left) == 0:
                b = left[0] / (chunk[0] - chunks[number][0])
                if b > 0 and set(f"{b:.12g}") <= {"0", "1"}:
                    ranks = listed([r for r in range(p) if int(b) // 10**r % 10])
                    return f"contains values of chunk {other}, from rank {ranks}"
    return f"is not a sum of the ranks' chunks {number}"
