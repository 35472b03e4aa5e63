"""PowerSGD: sends a gradient matrix as two thin factors, found by one step of power iteration.

For each layer, M_i is rank i's matrix (its gradient plus its residual), rows x cols:

    P = mean of M_i Q                 rows x r      allreduce
    P <- P, columns orthonormal                     the same on all ranks
    Q_i = M_i^T P                     cols x r
    residual of rank i: M_i - P Q_i^T               error feedback
    Q = mean of Q_i                                 allreduce
    result = P Q^T                                  of rank r

r (rows + cols) numbers are sent instead of rows cols. The next call begins with this Q ("warm
start"): singular vectors change slowly, so the iteration converges from step to step. Summed over
ranks, results so far + residuals = all gradients so far, at all times. A mean of matrix rank r or
less is exact.

Vectors (biases), matrices whose factors would be larger, and elements between layers are reduced
uncompressed, together with P. So there are two allreduces in all, however many layers there are.

Vogels, Karimireddy and Jaggi, arXiv 1905.13727, algorithms 1 and 2.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from ..allreduce.elementwise import SUM, combine, scale
from ..jit.compile import REASSOCIATE, compiled
from ..optimizers.base import TINY
from .base import Method, State

FIRST, LAST, ROWS, COLS, R = range(5)  # columns of `State.layers`, one row per layer

# Products with thin matrices, each in one pass over the large matrix. P, rows x r, and Q, cols x r,
# are stored transposed, as (r, rows) and (r, cols), so all loops run along contiguous rows. (A
# library's matrix product is slower for thin matrices, and all ranks must get the same bits.)


@compiled(fastmath=REASSOCIATE)
def dot(x, y):
    """x.y in float64."""
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i]) * np.float64(y[i])
    return total


@compiled
def add_scaled(into, x, factor):
    """into += factor x, in the precision of `into`."""
    f = into.dtype.type(factor)
    for i in range(x.size):
        into[i] += f * x[i]


@compiled
def project(matrix, q, p):
    """P = M Q."""
    for row in range(matrix.shape[0]):
        for k in range(q.shape[0]):
            p[k, row] = dot(matrix[row, :], q[k, :])


@compiled
def lift(matrix, p, q):
    """Q = M^T P."""
    q[:] = 0
    for row in range(matrix.shape[0]):
        for k in range(q.shape[0]):
            add_scaled(q[k, :], matrix[row, :], p[k, row])


@compiled
def add_product(matrix, p, q, factor):
    """M += factor P Q^T."""
    for row in range(matrix.shape[0]):
        for k in range(q.shape[0]):
            add_scaled(matrix[row, :], q[k, :], factor * p[k, row])


@compiled
def orthonormalise(rows):
    """Orthonormalise by Gram-Schmidt, twice, which is enough; a dependent row may become zero."""
    for k in range(rows.shape[0]):
        row = rows[k, :]
        for _ in range(2):
            for before in range(k):
                add_scaled(row, rows[before, :], -dot(row, rows[before, :]))
            length = np.sqrt(dot(row, row))
            if length < TINY:  # 1 / length would be infinite in float32
                row[:] = 0
            else:
                scale(row, 1 / length)


@dataclass(frozen=True)
class PowerSGD(Method):
    """Rank-r factors of each layer's matrix, with error feedback.

    An array of more than two dimensions becomes a matrix (product of the others, last dimension).

    If a gradient isn't finite, its layer's result is NaN; the layer's residual is dropped, and the
    next call begins with a new Q.

    Args:
        rank: r >= 1, number of columns of P and Q
        seed: >= 0, of the first Q
    """

    rank: int = 2
    seed: int = 0
    remembers = True

    def __post_init__(self):
        for name, least in (("rank", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")

    def lay_out(self, n: int, segments, dtype) -> tuple[np.ndarray, np.ndarray]:
        """Return rows [first, last, rows, cols, r] (r = 0: uncompressed), and the first Q."""
        if segments is None:
            raise ValueError("PowerSGD compresses matrices: call init(n, segments=...)")
        layers, end, left = [], 0, 0  # looked at up to `end`; `layers` is complete up to `left`
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
        """Return the first Q of all matrices, flat: the same on all ranks."""
        size = int((layers[:, COLS] * layers[:, R]).sum())
        return np.random.default_rng(self.seed).standard_normal(size).astype(dtype)

    def reduce(self, team, gradient: np.ndarray, state: State, op: str) -> None:
        matrices = state.layers[state.layers[:, R] > 0]
        others = [slice(*row[:2]) for row in state.layers if row[R] == 0]
        as_they_are = np.concatenate([gradient[part] for part in others])
        thin = np.empty((matrices[:, ROWS] * matrices[:, R]).sum() + as_they_are.size, state.dtype)
        thin[thin.size - as_they_are.size :] = as_they_are
        owed, out = views(state.residual, matrices), views(gradient, matrices)
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
            orthonormalise(q)  # otherwise its length would grow as the gradient squared
            gone = ~q.any(axis=1)  # the iteration cannot leave zero
            q[gone] = start[gone]
        at = thin.size - as_they_are.size
        for part in others:
            gradient[part] = thin[at : at + part.stop - part.start]
            at += part.stop - part.start

    def sent(self, n: int, ranks: int, layers: np.ndarray, itemsize: int) -> float:
        compressed = (layers[:, LAST] - layers[:, FIRST])[layers[:, R] > 0].sum()
        factors = (layers[:, R] * (layers[:, ROWS] + layers[:, COLS])).sum()
        return 2 * (ranks - 1) / ranks * itemsize * float(n - compressed + factors)


def views(flat: np.ndarray, matrices: np.ndarray) -> list[np.ndarray]:
    """Return the matrices in a flat vector, as views."""
    return [flat[a:b].reshape(rows, cols) for a, b, rows, cols, _ in matrices]


def factors(flat: np.ndarray, matrices: np.ndarray, side: int) -> list[np.ndarray]:
    """Return every matrix's thin factor in a flat buffer, in order: views, (r, rows or cols)."""
    sizes = matrices[:, R] * matrices[:, side]
    ends = np.cumsum(sizes)
    return [
        flat[end - size : end].reshape(row[R], -1)
        for row, size, end in zip(matrices, sizes, ends, strict=True)
    ]
