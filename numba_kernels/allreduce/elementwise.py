"""Element-wise operations of all reductions, and how a vector is divided among ranks."""

from numba import types
from numba.extending import overload

from ..jit.compile import compiled
from ..jit.copying import copy  # noqa: F401  (for those who look for it here)
from ..jit.halves import narrow, widen
from ..shared.node_array import LINE

SUM, MIN, MAX, PRODUCT = 0, 1, 2, 3


def op_code(op: str) -> int:
    """Return the op code for kernels; a mean is a sum that is divided at the end."""
    return {"sum": SUM, "mean": SUM, "min": MIN, "max": MAX, "product": PRODUCT}[op]


@compiled
def bounds(n, parts, i):
    """Return [first, last), slice i of `parts` of n elements: whole cache lines, maybe none."""
    lines = (n + LINE - 1) // LINE
    return min(n, lines * i // parts * LINE), min(n, lines * (i + 1) // parts * LINE)


@compiled
def combine(op, into, other):
    """into = into (op) other, element by element. A NaN on either side gives NaN.
    If `other` holds halves, they are widened and `into` is float32: halves are summed in float32.
    """
    if op == SUM:
        for i in range(into.size):
            into[i] += widen(other[i])
    elif op == MIN:
        for i in range(into.size):
            a, b = into[i], widen(other[i])
            into[i] = a if a < b or a != a else b
    elif op == MAX:
        for i in range(into.size):
            a, b = into[i], widen(other[i])
            into[i] = a if a > b or a != a else b
    else:
        for i in range(into.size):
            into[i] *= widen(other[i])


@compiled
def convert(into, other):
    """into = other, converted between halves and float32 where needed."""
    for i in range(into.size):
        into[i] = narrow(into, widen(other[i]))


@compiled
def divide(x, divisor):
    """x /= divisor, for a mean; does nothing for 1. Integers are truncated towards zero."""
    if divisor != 1:
        over = 1.0 / divisor
        for i in range(x.size):
            x[i] = quotient(x[i], divisor, over)


def quotient(total, divisor, over):
    """total / divisor, given `over` = 1 / divisor: multiplying is four times as fast."""


@overload(quotient, inline="always")
def _quotient(total, divisor, over):
    if isinstance(total, types.Integer):
        return lambda total, divisor, over: total // divisor if total >= 0 else -(-total // divisor)
    kind = total
    return lambda total, divisor, over: total * kind(over)


@compiled
def scale(x, factor):
    if factor != 1.0:
        f = x.dtype.type(factor)
        for i in range(x.size):
            x[i] *= f
