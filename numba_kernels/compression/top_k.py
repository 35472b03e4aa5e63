"""Top-k with error feedback: send the k largest numbers now; the others accumulate until later.

    m_r = e_r + g_r                      residual plus new gradient of rank r
    s_r = the k numbers of m_r that are largest in magnitude, zero elsewhere
    e_r = m_r - s_r                      the new residual
    result = sum_r s_r (over p for a mean)

So on every rank, at all times, everything sent + residual = sum of its gradients. Without the
residual, coordinates with small gradients would never move. Each rank sends k indices (int32) and
k numbers to all others.

Stich, Cordonnier and Jaggi, arXiv 1809.07599, algorithm 1 (memory m_t is our e); Aji and Heafield,
arXiv 1704.05021, section 3.
"""

import math
from dataclasses import dataclass

import numpy as np

from ..allreduce.elementwise import divide
from ..jit.compile import compiled
from .base import Method, State


@compiled
def accumulate(residual, gradient, magnitude):
    """residual += gradient; magnitude = |residual|."""
    for i in range(gradient.size):
        m = residual[i] + gradient[i]
        residual[i] = m
        magnitude[i] = abs(m)


@compiled
def pick(residual, bits, sign, threshold, ties, indices, values):
    """Move numbers above `threshold`, and the first `ties` equal to it, out; return how many."""
    at = 0
    for i in range(residual.size):
        magnitude = bits[i] & ~sign
        if magnitude >= threshold:
            if magnitude == threshold:
                if ties == 0:
                    continue
                ties -= 1
            indices[at] = i
            values[at] = residual[i]
            residual[i] = 0
            at += 1
    return at


@compiled
def add_at(into, indices, values):
    for i in range(indices.size):
        into[indices[i]] += values[i]


@dataclass(frozen=True)
class TopK(Method):
    """Send the largest numbers of each rank; zeros are never sent.

    NaN counts as larger than infinity, so it is sent first and does not stay in the residual.

    Args:
        ratio: fraction of the numbers to send, 0 < ratio <= 1; k = ratio n is rounded up
        feedback: keep the numbers not sent for the next call. False drops them, to show the effect.
    """

    ratio: float = 0.01
    feedback: bool = True
    remembers = True

    def __post_init__(self):
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must satisfy 0 < ratio <= 1, got {self.ratio}")

    def reduce(self, team, gradient: np.ndarray, state: State, op: str) -> None:
        indices, values = self.take(gradient, state)
        # One message: indices, then the bits of the numbers. Lengths may differ between ranks.
        mine = np.concatenate([indices, values.view(np.int32)])
        gradient[:] = 0
        for theirs in team.allgather(mine):
            k = theirs.size // (1 + gradient.itemsize // 4)
            # A copy, because float64 must be aligned to 8 bytes.
            add_at(gradient, theirs[:k], theirs[k:].copy().view(gradient.dtype))
        divide(gradient, team.size if op == "mean" else 1)

    def take(self, gradient: np.ndarray, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Add `gradient` to the residual, move the largest out, and return (indices, values)."""
        n, residual = state.n, state.residual
        k = self.k(n)
        unsigned = np.dtype(f"u{residual.itemsize}")
        magnitude = np.empty_like(gradient)
        accumulate(residual, gradient, magnitude)
        indices, values, count = np.empty(k, np.int32), np.empty(k, residual.dtype), 0
        if n:
            # The bits of positive floats, read as integers, sort like the floats, with NaN above
            # infinity; and integers are partitioned faster than floats.
            order = magnitude.view(unsigned)
            order.partition(n - k)
            threshold = order[n - k]
            ties = np.count_nonzero(order[n - k :] == threshold) if threshold else 0
            sign = unsigned.type(1 << 8 * residual.itemsize - 1)
            bits = residual.view(unsigned)
            count = pick(residual, bits, sign, threshold, ties, indices, values)
        if not self.feedback:
            residual[:] = 0
        return indices[:count], values[:count]

    def k(self, n: int) -> int:
        """Return k, the most numbers of n that a rank sends."""
        # 0.07 * 100 is 7.000000000000001 and must give 7, not 8.
        return min(n, math.ceil(round(self.ratio * n, 6)))

    def sent(self, n: int, ranks: int, layers: np.ndarray, itemsize: int) -> int:
        return (ranks - 1) * self.k(n) * (4 + itemsize)
