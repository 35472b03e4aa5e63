"""Products with thin matrices for PowerSGD, each in one pass over the large matrix.

P, rows x r, and Q, cols x r, are stored transposed, as (r, rows) and (r, cols), so all loops run
along contiguous rows. (A library's matrix product is slower for thin matrices, and all ranks must
get the same bits.)
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
