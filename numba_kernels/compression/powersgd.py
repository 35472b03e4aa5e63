"""PowerSGD: a matrix of gradients travels as two thin ones, found by one step of power iteration.

For each layer's matrix M_i of rank i (its gradient and what it still owes), rows x cols:

    P = mean of M_i Q                 rows x r      allreduce
    P <- P, columns orthonormal                     the same on all ranks
    Q_i = M_i^T P                     cols x r
    owed by rank i: M_i - P Q_i^T                   error feedback
    Q = mean of Q_i                                 allreduce
    result = P Q^T                                  rank r

r (rows + cols) numbers travel, not rows cols. Q is where the next call begins: singular vectors
change slowly, so the iteration converges from step to step ("warm start"). Summed over ranks, what
came out + what is owed = all gradients, at all times. A mean of rank r or less comes out exactly.

Vectors (biases), matrices for which the factors would be larger, and what lies between layers are
reduced as they are, along with P. So there are two allreduces in all, however many layers.

Vogels, Karimireddy and Jaggi, arXiv 1905.13727, algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ..allreduce.elementwise import SUM, combine, scale
from ..compile import REASSOCIATE, compiled
from ..optimizers.base import TINY
from .base import Method, State

FIRST, LAST, ROWS, COLS, R = range(5)  # of a layer, in `State.layers`

# P and Q are kept transposed, (r, rows) and (r, cols): all loops go along contiguous rows.


@compiled(fastmath=REASSOCIATE)
def dot(x, y):
    """x.y in float64."""
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


@compiled
def add_scaled(into, x, factor):
    """into += factor x, in their own precision."""
    f = into.dtype.type(factor)
    for i in range(x.size):
        into[i] += f * x[i]


@compiled
def project(matrix, q, p):
    """P = M Q."""
    for row in range(matrix.shape[0]):
        for k in range(q.shape[0]):
            p[k, row] = dot(matrix[row], q[k])


@compiled
def lift(matrix, p, q):
    """Q = M^T P."""
    q[:] = 0
    for row in range(matrix.shape[0]):
        for k in range(q.shape[0]):
            add_scaled(q[k], matrix[row], p[k, row])


@compiled
def add_product(matrix, p, q, factor):
    """M += factor P Q^T."""
    for row in range(matrix.shape[0]):
        for k in range(q.shape[0]):
            add_scaled(matrix[row], q[k], factor * p[k, row])


@compiled
def orthonormalise(rows):
    """Gram-Schmidt, twice, which is enough; a row that depends on those before may become zero.

    (Ours and not a library's: all ranks must get the same bits.)
    """
    for k in range(rows.shape[0]):
        for _ in range(2):
            for before in range(k):
                add_scaled(rows[k], rows[before], -dot(rows[k], rows[before]))
            length = np.sqrt(dot(rows[k], rows[k]))
            if length < TINY:  # 1 / length would be infinite in float32
                rows[k] = 0
            else:
                scale(rows[k], 1 / length)


@dataclass(frozen=True)
class PowerSGD(Method):
    """Rank-r factors of each layer's matrix, with error feedback.

    An array of more than two dimensions is the matrix (product of all others, last dimension).

    Args:
        rank: r >= 1, columns of P and Q
        seed: >= 0, of the first Q

    A gradient that isn't finite makes its layer's result NaN; what was owed there is dropped, and
    the next call begins afresh.
    """

    rank: int = 2
    seed: int = 0
    remembers = True

    def __post_init__(self):
        for name, least in (("rank", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is {value!r}; a whole number from {least} up is needed")

    def lay_out(self, n: int, segments, dtype) -> tuple[np.ndarray, np.ndarray]:
        """(rows of [first, last, rows, cols, r], r = 0 for what is left as it is; the first Q)."""
        if segments is None:
            raise ValueError("PowerSGD compresses matrices: init(n, segments=...) is needed")
        layers, end, left = [], 0, 0  # all before `end` is known, before `left` in `layers`
        for segment in sorted(segments, key=lambda s: s.offset):
            first, shape = int(segment.offset), tuple(segment.shape)
            last, cols = first + prod(shape), shape[-1] if len(shape) > 1 else 1
            if first < end or last > n:
                raise ValueError(
                    f"a layer of shape {shape} at {first} does not fit between {end} and {n}"
                )
            end, rows = last, (last - first) // max(cols, 1)
            r = min(self.rank, rows, cols)
            if r * (rows + cols) < rows * cols:
                layers += [[left, first, 0, 0, 0], [first, last, rows, cols, r]]
                left = last
        layers = np.array([*layers, [left, n, 0, 0, 0]], np.int64)
        return layers, self.start(layers, dtype)

    def start(self, layers: np.ndarray, dtype) -> np.ndarray:
        """The first Q of all matrices, flat: the same on all ranks."""
        size = int((layers[:, COLS] * layers[:, R]).sum())
        return np.random.default_rng(self.seed).standard_normal(size).astype(dtype)

    def reduce(self, team, gradient: np.ndarray, state: State, op: str) -> None:
        matrices = state.layers[state.layers[:, R] > 0]
        others = [slice(*row[:2]) for row in state.layers if row[R] == 0]
        as_they_are = np.concatenate([gradient[part] for part in others])
        thin = np.empty((matrices[:, ROWS] * matrices[:, R]).sum() + as_they_are.size, state.dtype)
        thin[thin.size - as_they_are.size :] = as_they_are
        owed, out = of(state.residual, matrices), of(gradient, matrices)
        ps, qs = factors(thin, matrices, ROWS), factors(state.basis, matrices, COLS)

        for m, g, p, q in zip(owed, out, ps, qs, strict=True):
            combine(SUM, m.reshape(-1), g.reshape(-1))
            project(m, q, p)
        team.allreduce(thin, op)
        for m, p, q in zip(owed, ps, qs, strict=True):
            orthonormalise(p)
            lift(m, p, q)
            add_product(m, p, q, -1.0)
        team.allreduce(state.basis, op)

        starts = factors(self.start(matrices, state.dtype), matrices, COLS)
        for m, g, p, q, start in zip(owed, out, ps, qs, starts, strict=True):
            g[:] = 0
            add_product(g, p, q, 1.0)
            if not np.isfinite(q).all():
                m[:] = 0
                q[:] = start
            orthonormalise(q)  # or its length would go with the gradient's square
            gone = ~q.any(axis=1)  # from zero no iteration finds back
            q[gone] = start[gone]
        at = thin.size - as_they_are.size
        for part in others:
            gradient[part] = thin[at : at + part.stop - part.start]
            at += part.stop - part.start

    def sent(self, n: int, ranks: int, layers: np.ndarray, itemsize: int) -> float:
        compressed = (layers[:, LAST] - layers[:, FIRST])[layers[:, R] > 0].sum()
        factors = (layers[:, R] * (layers[:, ROWS] + layers[:, COLS])).sum()
        return 2 * (ranks - 1) / ranks * itemsize * float(n - compressed + factors)


def of(flat: np.ndarray, matrices: np.ndarray) -> list[np.ndarray]:
    """The matrices in a flat vector, as views."""
    return [flat[a:b].reshape(rows, cols) for a, b, rows, cols, _ in matrices]


def factors(flat: np.ndarray, matrices: np.ndarray, side: int) -> list[np.ndarray]:
    """Every matrix's thin factor in a flat buffer, in order: views, (r, rows or cols)."""
    sizes = matrices[:, R] * matrices[:, side]
    ends = np.cumsum(sizes)
    return [
        flat[end - size : end].reshape(row[R], -1)
        for row, size, end in zip(matrices, sizes, ends, strict=True)
    ]
