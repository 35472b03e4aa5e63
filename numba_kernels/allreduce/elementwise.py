"""What every reduction does to elements, and how a vector is cut among ranks."""

from ..compile import compiled

SUM, MIN, MAX = 0, 1, 2
LINE = 16  # elements: 64 bytes of float32; two ranks never share a cache line of a slice


def op_code(op: str) -> int:
    """The kernels' number for `op`; a mean is a sum that is scaled at the end."""
    return {"sum": SUM, "mean": SUM, "min": MIN, "max": MAX}[op]


@compiled
def bounds(n, parts, i):
    """The i-th of `parts` slices of n elements: [first, last), whole cache lines, may be empty."""
    lines = (n + LINE - 1) // LINE
    return min(n, lines * i // parts * LINE), min(n, lines * (i + 1) // parts * LINE)


@compiled
def combine(op, into, other):
    """into = into (op) other, element by element. A NaN on either side stays a NaN."""
    if op == SUM:
        for i in range(into.size):
            into[i] += other[i]
    elif op == MIN:
        for i in range(into.size):
            a, b = into[i], other[i]
            into[i] = a if a < b or a != a else b
    else:
        for i in range(into.size):
            a, b = into[i], other[i]
            into[i] = a if a > b or a != a else b


@compiled
def copy(into, other):
    """into = other, of one length. (Numba makes no vector code of `into[:] = other`.)"""
    for i in range(into.size):
        into[i] = other[i]


@compiled
def scale(x, factor):
    """x *= factor, in x's own precision."""
    if factor != 1.0:
        f = x.dtype.type(factor)
        for i in range(x.size):
            x[i] *= f
