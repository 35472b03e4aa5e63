"""Products with thin matrices, as PowerSGD needs them, each in one pass over the large one.

P, rows x r, and Q, cols x r, are kept transposed, as (r, rows) and (r, cols): all loops go along
contiguous rows. (And not by a library's matrix product: for thin ones it is slower, and all ranks
must get the same bits.)
"""

import numpy as np

from ..allreduce.elementwise import scale
from ..jit.compile import REASSOCIATE, compiled
from ..optimizers.base import TINY


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
    """Gram-Schmidt, twice, which is enough; a row that depends on those before may become zero."""
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
