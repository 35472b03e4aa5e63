"""One vector into another, compiled. Apart from all that needs MPI: rules are tried without it."""

from .compile import compiled


@compiled
def copy(into, other):
    """into = other, of one length. (Numba makes no vector code of `into[:] = other`.)"""
    for i in range(into.size):
        into[i] = other[i]
