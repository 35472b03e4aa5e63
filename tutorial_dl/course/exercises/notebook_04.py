"""Checks of notebook 04, ranks and messages; `ring_sum` runs on every rank, in a %%px cell."""

import numpy as np

from tutorial_dl.course.virtual_ranks import Patient

from . import NotYet, close, counted, every_rank, must_be, must_be_a_ring, must_be_function
from .answers import must_return

LATENCY, BANDWIDTH = 2e-6, 10e9  # exercise 1: seconds, bytes per second


def half(answer) -> str:
    """The size at which latency and bytes cost the same, for 2 µs and 10 GB/s."""
    mistakes = {
        "β is seconds per byte: it is the inverse of the bandwidth": LATENCY / BANDWIDTH,
        "this is the other way round; at n½ both parts cost the same": 1 / (LATENCY * BANDWIDTH),
        "only one message is sent, in one direction": 2 * LATENCY * BANDWIDTH,
        "this is a number of float32 weights; bytes are asked for": LATENCY * BANDWIDTH / 4,
    }
    must_be(answer, LATENCY * BANDWIDTH, "n½ in bytes", mistakes)
    return "below 20 kB the number of messages counts, above it the number of bytes"


@every_rank
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
    must_return(total)
    left = (rank - 1) % p
    again = x + (p - 1) * np.array([1.0, left, left**2])
    mistakes = {
        "this is the sum without this rank's own x": right - x,
        "this is a mean; the sum is asked for": right / p,
        "x has been added once more: the ring makes size - 1 steps": right + x,
        "every step added the left neighbour's own x: send on what you received last": again,
        "nothing was added": x,
    }
    close(total, right, "the sum", mistakes)
    if not np.array_equal(mine, x):
        raise NotYet("the sum is right, but x itself has changed; work on a copy")
    must_be_a_ring(comm.sent, rank, p, p - 1, either_way=False)
    return f"all {p} ranks have the sum, after {counted(p - 1, 'message')} each to the right"
