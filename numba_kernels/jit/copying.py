"""Copy a vector in compiled code. A separate file without MPI, for rules that run without it."""

from .compile import compiled


@compiled
def copy(into, other):
    """into = other, of equal length. (Numba does not vectorise `into[:] = other`.)"""
    for i in range(into.size):
        into[i] = other[i]
