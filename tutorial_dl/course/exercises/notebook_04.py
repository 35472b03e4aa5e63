"""Checks of notebook 04, ranks and messages; `ring_sum` runs on every rank, in a %%px cell."""

import numpy as np

from tutorial_dl.course.virtual_ranks import Patient

from . import NotYet, close, must_be_a_ring, must_be_function, must_return


def half(answer) -> str:
    """The size at which latency and bytes cost the same, for 2 µs and 10 GB/s."""
    close(answer, 2e-6 * 10e9, "n½ in bytes", rtol=0.01)
    return "below 20 kB the number of messages counts, above it the number of bytes"


def ring_sum(answer) -> str:
    """The sum over all ranks by passing vectors round a ring, on the ranks that run the cell."""
    from mpi4py import MPI

    comm = Patient(MPI.COMM_WORLD)
    p, rank = comm.size, comm.rank
    x = np.array([1.0, rank, rank**2])  # sums: p, p(p-1)/2, (p-1)p(2p-1)/6
    mine = x.copy()
    must_be_function(answer)
    total = answer(comm, mine)
    right = np.array([p, p * (p - 1) / 2, (p - 1) * p * (2 * p - 1) / 6])
    must_return(total, f"rank {rank}: ")
    close(total, right, f"rank {rank}: the sum", rtol=1e-12)
    if not np.array_equal(mine, x):
        raise NotYet(f"rank {rank}: the sum is right, but x itself has changed")
    must_be_a_ring(comm.sent, rank, p, p - 1)
    return f"rank {rank} has {np.asarray(total)} after {p - 1} messages to rank {(rank + 1) % p}"
