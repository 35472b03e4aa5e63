"""Reducing layer by layer beside backpropagation gives the same gradient."""

import threading

import numpy as np
import pytest
from mpi4py import MPI
from rank_tests import with_ranks

from numba_kernels.errors import PeerError
from tutorial_dl import Team
from tutorial_dl.course.overlap import Overlapped, seconds
from tutorial_dl.replica import DenseReplica


@with_ranks(1, 2, 3)
def test_overlap():
    """Reducing layer by layer on a thread gives the same gradient, and errors are raised."""
    team, threads = Team(), threading.active_count()
    random = np.random.default_rng(team.rank)
    batch = random.normal(size=(6, 7)).astype("float32"), random.integers(0, 5, 6)
    plain, other = (DenseReplica((7, 40, 30, 5), seed=2) for _ in range(2))
    with Overlapped(team, other) as overlapped:
        for _ in range(20):
            loss = overlapped.gradient(batch)
            assert loss == plain.compute_gradient(batch)[0]
            expected = team.allgather(plain.gradient).mean(axis=0, dtype=np.float64)
            np.testing.assert_allclose(other.gradient, expected, atol=1e-7)
        with pytest.raises(ValueError, match="equal shares"):
            overlapped.gradient((batch[0][:0], batch[1][:0]))
    replicas = {n: DenseReplica((7, 40, 5)) for n in ("alone", "in turn", "overlapped")}
    took = seconds(team, replicas, batch, rounds=5)
    assert all(t > 0 for t in took.values())
    assert not threading.active_count() - threads

    if team.size > 1:  # rank 0 never calls it
        with Overlapped(team, other) as overlapped:
            MPI.COMM_WORLD.Barrier()  # no rank is still in a call
            if team.rank == 0:
                overlapped._team.abort(KeyError("of rank 0"))
            else:
                with pytest.raises(PeerError, match="rank 0 failed"):
                    overlapped.gradient(batch)
