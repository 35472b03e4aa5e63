"""Bench: the in-place allreduce in the window against the MPI library's."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from ..team import Team
from .timing import copy_bandwidth, medians

KIB = (1, 16, 64, 256, 1024, 4096, 16384, 65536)


def rows(seconds: float) -> list[dict]:
    """One row a size: full cycles, and the usual repeated call as `repeated_...`."""
    team = Team()
    comm = MPI.COMM_WORLD
    library = MPI.Get_library_version().split()[0]
    bandwidth = float(team.allreduce(np.array([copy_bandwidth(team.barrier)]))[0])
    found = []
    end = time.perf_counter() + seconds
    for kib in KIB:
        n = kib * 256
        source = np.full(n, 1.0, np.float32)
        window, private, sink = team.empty(n), np.zeros(n, np.float32), np.empty(n, np.float32)
        private[:] = window[:] = 0

        def cycle(x, reduce, source=source, sink=sink):
            np.copyto(x, source)
            reduce(x)
            np.copyto(sink, x)

        def mpi(x):
            comm.Allreduce(MPI.IN_PLACE, x)

        calls = [
            lambda x=window: cycle(x, team.allreduce),
            lambda x=private: cycle(x, mpi),
            lambda x=private: cycle(x, len),
            lambda x=window: team.allreduce(x),
            lambda x=private: mpi(x),
        ]
        # Every rank stops at the same size.
        left = team.allreduce(np.array([end - time.perf_counter()]), "min")[0]
        share = max(0.002, min(0.03, left / (len(KIB) * 5 * 12)))
        ours, peer, nothing, ours_again, peer_again = medians(calls, team.barrier, 9, share)
        window[:] = private[:] = 1
        team.allreduce(window)
        assert (window == team.size).all()
        limit = 2 * team.size * n * 4 / bandwidth
        found.append(
            {
                "what": "allreduce, full cycle",
                "ranks": team.size,
                "bytes": n * 4,
                "algorithm": "shared_memory",
                "dtype": "float32",
                "ours_us": 1e6 * (ours - nothing),
                "peer": f"{library} Allreduce",
                "peer_us": 1e6 * (peer - nothing),
                "ratio": (peer - nothing) / (ours - nothing),
                "fraction_of_limit": limit / (ours - nothing),
            }
        )
        found.append(
            found[-1]
            | {
                "what": "allreduce, repeated call",
                "ours_us": 1e6 * ours_again,
                "peer_us": 1e6 * peer_again,
                "ratio": peer_again / ours_again,
                "fraction_of_limit": limit / ours_again,
            }
        )
    return found
