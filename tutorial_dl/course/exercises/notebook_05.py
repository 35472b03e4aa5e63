"""Checks of notebook 05, allreduce. `reduce_scatter` runs on every rank, in a %%px cell."""

import numpy as np

from tutorial_dl.course.virtual_ranks import Patient

from . import NotYet, close, counted, every_rank, must_be_a_ring, must_be_function
from .rings import listed, whose

SHAPE = np.array([1.0, 2.0])  # every chunk is a multiple of it


@every_rank
def reduce_scatter(answer) -> str:
    """The first half of the ring, on the ranks that run the cell."""
    from mpi4py import MPI

    comm = Patient(MPI.COMM_WORLD)
    p, rank = comm.size, comm.rank
    # One decimal digit per rank, so that a wrong sum shows which ranks' values are in it.
    chunks = [(chunk + 1) * 10.0**rank * SHAPE for chunk in range(p)]
    must_be_function(answer)
    answer(comm, chunks)
    if len(chunks) != p:
        raise NotYet(f"the list has {len(chunks)} chunks now, it must have {p}")
    complete = [_whose(chunks[c], c, p) == [1] * p for c in range(p)]
    if not complete[rank]:
        elsewhere = [c for c in range(p) if complete[c]]
        hint = f" (complete there: chunk {listed(elsewhere)})" if elsewhere else ""
        raise NotYet(f"rank {rank}: {_wrong(chunks[rank], rank, p)}{hint}")
    must_be_a_ring(comm.sent, rank, p, p - 1, longest=SHAPE.size)
    messages = counted(p - 1, "message")
    return f"each of {p} ranks has all of its own chunk, after {messages} of one chunk"


def _whose(chunk, number: int, p: int) -> list[int] | None:
    """How often each rank's values are in chunk `number`; None if it is not a sum of them."""
    try:
        chunk = np.asarray(chunk, float)
    except (TypeError, ValueError):
        return None
    return whose(chunk, (number + 1) * SHAPE, p) if chunk.shape == SHAPE.shape else None


def _wrong(chunk, number: int, p: int) -> str:
    """What is wrong with chunk `number`: which ranks' values it lacks or has more than once."""
    times = _whose(chunk, number, p)
    if times is None:
        close(chunk, (number + 1) * (10**p - 1) // 9 * SHAPE, f"chunk {number}")
        raise AssertionError("a right chunk was called wrong")
    missing = [r for r in range(p) if times[r] == 0]
    often = [r for r in range(p) if times[r] > 1]
    parts = [f"lacks the values of rank {listed(missing)}"] if missing else []
    parts += [f"has those of rank {listed(often)} more than once"] if often else []
    return f"chunk {number} {' and '.join(parts)}"
