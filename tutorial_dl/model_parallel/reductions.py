"""`Reductions`: a Team's reductions, and the bytes that this rank sends in them.

In a ring of T ranks, each rank sends, for a vector of n bytes that all have at the end,

    allgather         (T - 1) / T n        every part but the own one passes through it
    reduce-scatter    (T - 1) / T n        so do the sums of every part
    allreduce         2 (T - 1) / T n      a reduce-scatter and an allgather

Ranks that share memory copy these bytes in place of sending them.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.team.team import Team


class Reductions:
    """The ranks of `team`, with a count.

    Attributes:
        sent: Bytes so far.
    """

    def __init__(self, team: Team) -> None:
        self.team, self.size, self.rank, self.sent = team, team.size, team.rank, 0.0

    def allreduce(self, x: np.ndarray) -> np.ndarray:
        """The sum over ranks, in place; returns x."""
        self.sent += 2 * (self.size - 1) / self.size * x.nbytes
        return self.team.allreduce(x)

    def gathered(self, x: np.ndarray) -> np.ndarray:
        """Allgather along the sequence: (s, t / T, ...) of each rank to (s, t, ...) on all."""
        self.sent += (self.size - 1) * x.nbytes
        every = self.team.allgather(np.ascontiguousarray(x)).reshape(self.size, *x.shape)
        return np.concatenate(list(every), axis=1)

    def summed_part(self, x: np.ndarray) -> np.ndarray:
        """Reduce-scatter along the sequence: of the sum of all ranks' x (s, t, ...), this part."""
        self.part(x[:0])  # refuses uneven parts
        self.sent += (self.size - 1) / self.size * x.nbytes
        return self.team.alltoall(np.stack(np.split(x, self.size, axis=1))).sum(axis=0)

    def part(self, x: np.ndarray) -> np.ndarray:
        """This rank's part of x (s, t, ...) along the sequence."""
        t, ranks = x.shape[1], self.size
        if t % ranks:
            raise ValueError(
                f"a sequence of {t} positions can't be divided evenly over {ranks} ranks: use a "
                f"length such as {t - t % ranks or ranks}, or sequence=False"
            )
        t //= ranks
        return np.ascontiguousarray(x[:, self.rank * t : (self.rank + 1) * t])
