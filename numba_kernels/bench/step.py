"""Bench: the fused synchronous step against an MPI allreduce followed by the update."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from ..fused import Step
from ..optimizers import SGD, Adam
from ..team import Team
from .timing import copy_bandwidth, medians

SIZES = (100_000, 669_706, 10_000_000)  # the middle one: a network of 784-512-512-10


def rows(seconds: float) -> list[dict]:
    """One row a rule and size; both sides write the gradient first, as backpropagation does."""
    team = Team()
    comm, p = MPI.COMM_WORLD, team.size
    bandwidth = float(team.allreduce(np.array([copy_bandwidth(team.barrier)]))[0])
    found = []
    for rule in (SGD(0.01), Adam(0.001)):
        for n in SIZES:
            source = np.full(n, 1e-3, np.float32)
            w, g = np.ones(n, np.float32), team.empty(n)
            step = Step(team, rule, w, g)
            v, h = np.ones(n, np.float32), np.zeros(n, np.float32)
            state = rule.init(n)

            def ours(g=g, source=source, step=step):
                np.copyto(g, source)
                step(0.0, 32)

            def peer(v=v, h=h, source=source, state=state, rule=rule):
                np.copyto(h, source)
                comm.Allreduce(MPI.IN_PLACE, h)
                h.__imul__(1 / p)
                rule.update(v, h, state)

            def only_write(h=h, source=source):
                np.copyto(h, source)

            a, b, nothing = medians([ours, peer, only_write], team.barrier, 9, seconds / 800)
            # Read p gradients, write p rows of weights, and read and write weights and state once.
            moved = (2 * p + 2 + 2 * rule.slots + 2 * p) * 4 * n
            found.append(
                {
                    "what": "synchronous step",
                    "ranks": p,
                    "parameters": n,
                    "algorithm": "fused " + type(rule).__name__.lower(),
                    "dtype": "float32",
                    "ours_us": 1e6 * (a - nothing),
                    "peer": "MPI Allreduce + update",
                    "peer_us": 1e6 * (b - nothing),
                    "ratio": (b - nothing) / (a - nothing),
                    "fraction_of_limit": moved / bandwidth / (a - nothing),
                }
            )
    return found
