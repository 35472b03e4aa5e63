"""Adasum: adds gradients that are orthogonal, averages those that agree, and interpolates between.

    adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

pairwise up a tree: neighbours first; a rank without a neighbour waits for the next level.

    rank   0   1   2   3   4
            \\ /     \\ /    |
            01      23     4
              \\    /      /
               0123      /
                  \\     /
                   01234

If p gradients point the same way, their sum is a step p times too long; if they are orthogonal, all
of them can be followed. Adasum takes the step's length from the angles, so a learning rate tuned
for one rank also works for many. A zero gradient adds nothing.

Rank r receives slice r of every vector, so all ranks work on all pairs at once. Each rank computes
its part of a pair's dot products, and these few numbers are allreduced. A rank sends as many bytes
as in a ring allreduce.

    alltoall of slices  ->  each level: allreduce of dot products, mix  ->  allgather of slices

Maleki et al., arXiv 2006.02924, equation 3 and section 3.4 (by layer), the tree of algorithm 1.
"""

from dataclasses import dataclass

import numpy as np

from ..allreduce.elementwise import copy
from ..jit.compile import REASSOCIATE, compiled
from ..optimizers.base import cut, offsets_of
from .base import Method, State, block_of


@compiled(fastmath=REASSOCIATE)
def products(a, b):
    """Return a.b, |a|^2, |b|^2 in float64, which neither overflow nor lose digits in long sums."""
    ab = aa = bb = 0.0
    for i in range(a.size):
        x, y = np.float64(a[i]), np.float64(b[i])
        ab += x * y
        aa += x * x
        bb += y * y
    return ab, aa, bb


@compiled
def mix(a, b, of_a, of_b):
    """a = of_a a + of_b b."""
    number = a.dtype.type
    wa, wb = number(of_a), number(of_b)
    for i in range(a.size):
        a[i] = wa * a[i] + wb * b[i]


@compiled
def measure(a, b, pieces, sums):
    """Add the products of this slice's part of each layer to `sums`, (layers, 3)."""
    for p in range(pieces.shape[0]):
        first, last, layer = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        ab, aa, bb = products(a[first:last], b[first:last])
        sums[layer, 0] += ab
        sums[layer, 1] += aa
        sums[layer, 2] += bb


@compiled
def join(a, b, pieces, sums):
    """a = adasum(a, b), layer by layer, given the products of the whole layers."""
    for p in range(pieces.shape[0]):
        first, last, layer = pieces[p, 0], pieces[p, 1], pieces[p, 2]
        ab, aa, bb = sums[layer, 0], sums[layer, 1], sums[layer, 2]
        # A zero vector must not be divided by; a NaN must reach the whole layer.
        of_a = 1.0 if aa == 0 else 1 - ab / (2 * aa)
        of_b = 1.0 if bb == 0 else 1 - ab / (2 * bb)
        mix(a[first:last], b[first:last], of_a, of_b)


@dataclass(frozen=True)
class Adasum(Method):
    """Adasum of all ranks' gradients: by layer if `init` was given segments, else as one vector.

    `op` must be "mean": for gradients that agree, Adasum is the mean. Elements in a gap between
    layers count with the layer before.
    """

    def lay_out(self, n: int, segments, dtype) -> tuple[np.ndarray, np.ndarray]:
        offsets = [0] if segments is None else offsets_of(segments)  # one layer if none are given
        return np.array(offsets, np.int64), np.zeros(0, dtype)

    def reduce(self, team, gradient: np.ndarray, state: State, op: str) -> None:
        if op == "sum":
            raise ValueError("op must be 'mean' for Adasum, got 'sum'")
        n, ranks = state.n, team.size
        block = block_of(n, ranks)
        first, last = min(team.rank * block, n), min((team.rank + 1) * block, n)
        pieces = cut(state.layers.tolist(), first, last)
        padded = np.empty(ranks * block, state.dtype)
        copy(padded[:n], gradient)
        padded[n:] = 0
        rows = list(team.alltoall(padded.reshape(ranks, block)))  # my slice of every gradient

        while len(rows) > 1:
            pairs = list(zip(rows[::2], rows[1::2], strict=False))
            sums = np.zeros((len(pairs), len(state.layers), 3))
            for (a, b), of_pair in zip(pairs, sums, strict=True):
                measure(a, b, pieces, of_pair)
            team.allreduce(sums)
            for (a, b), of_pair in zip(pairs, sums, strict=True):
                join(a, b, pieces, of_pair)
            rows = rows[::2]

        copy(gradient, team.allgather(rows[0]).reshape(-1)[:n])

    def sent(self, n: int, ranks: int, layers: np.ndarray, itemsize: int) -> float:
        # A tree of p leaves has p - 1 pairs; each pair has three float64 products per layer.
        dots = (ranks - 1) * len(layers) * 3 * 8
        return (ranks - 1) * 2 * (block_of(n, ranks) * itemsize + dots / ranks)
