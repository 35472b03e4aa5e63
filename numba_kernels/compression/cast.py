"""Gradients travel as fp16 or bf16, two bytes each, and are added in float32.

    rank r of p receives block r of every rank's halves  alltoall
    adds them in float32, in the order of ranks,
    divides for a mean, rounds once,
    and sends the result to all ranks                    allgather

                       block 0   block 1
    rank 0 has         a0 --+    a1 --.         -> a0 + b0 ->  both ranks have
    rank 1 has         b0 --+    b1 --+         -> a1 + b1 ->  (a0 + b0, a1 + b1)

Each number is rounded twice, to nearest, ties to even: before it is sent, and as part of a sum. A
ring that passed on sums of halves would round p times. fp16 has 11 significant bits, but numbers
above 65504 become infinity (and stay infinity, so that it is noticed) and numbers below 6e-8 become
zero; bf16 has 8 significant bits and float32's range. Micikevicius et al., arXiv 1710.03740;
Kalamkar et al., arXiv 1905.12322.
"""

from dataclasses import dataclass

import numpy as np
from numba import types
from numba.extending import overload

from ..allreduce.elementwise import SUM, combine, convert, divide
from ..jit.compile import compiled
from ..jit.halves import narrow
from .base import Method, State, block_of

# The dtypes in which halves are stored here, and in which they are sent (NumPy has no bfloat16).
# They differ between formats, so a rank that sends one format to a rank that expects the other is
# detected as a mismatch.
CARRIERS = {"fp16": np.dtype("uint16"), "bf16": np.dtype("int16")}
WIRE = {"fp16": np.dtype("float16"), "bf16": np.dtype("int32")}


@compiled
def round_to(halves, x):
    """halves = x, to nearest, ties to even, from float32 or float64."""
    for i in range(x.size):
        halves[i] = narrow(halves, to_single(x[i]))


def to_single(number):
    """Return a float32 that rounds to the same half as `number`."""


@overload(to_single, inline="always")
def _to_single(number):
    if number == types.float32:
        return lambda number: number

    def to_odd(number):
        # Rounding to nearest twice is wrong if the first result is a tie for the second rounding.
        # So, of the two float32 neighbours of an inexact number, take the odd one: never a tie.
        near = np.float32(number)
        bits, other = near.view(np.int32), 1 if abs(number) > abs(near) else -1
        even = (number < near or number > near) and bits & 1 == 0
        return np.int32(bits + other * even).view(np.float32)

    return to_odd


@dataclass(frozen=True)
class Cast(Method):
    """Send gradients as halves.

    Args:
        half: "fp16" (more digits) or "bf16" (more range)

    Example:
        >>> Cast("bf16").bytes(1_000_000, ranks=2)           # 4 000 000 without compression
        2000000
    """

    half: str = "bf16"

    def __post_init__(self):
        if self.half not in WIRE:
            raise ValueError(f"unknown half {self.half!r}; choose one of {', '.join(WIRE)}")

    def reduce(self, team, gradient: np.ndarray, state: State, op: str) -> None:
        ranks, carrier, wire = team.size, CARRIERS[self.half], WIRE[self.half]
        block = block_of(state.n, ranks)
        halves = np.empty(ranks * block, carrier)
        round_to(halves[: state.n], gradient)
        halves[state.n :] = 0
        came = team.alltoall(halves.view(wire).reshape(ranks, -1)).view(carrier)  # (ranks, block)

        total = np.empty(block, np.float32)
        convert(total, came[0])
        for row in came[1:]:
            combine(SUM, total, row)
        divide(total, ranks if op == "mean" else 1)
        mine = np.empty(block, carrier)
        round_to(mine, total)

        everyone = team.allgather(mine.view(wire)).view(carrier)  # (ranks, block)
        convert(gradient, everyone.reshape(-1)[: state.n])

    def sent(self, n: int, ranks: int, layers: np.ndarray, itemsize: int) -> int:
        return 2 * (ranks - 1) * 2 * block_of(n, ranks)
