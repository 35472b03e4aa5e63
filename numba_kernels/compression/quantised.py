"""Gradients travel as 8, 4 or 1 bit a number, with a scale for each block, and error feedback.

    m     = e_r + g_r                      residual plus new gradient of rank r
    q     = round(m / scale)               scale = max |m| / 127 of a block (4 bits: / 7)
    e_r   = m - scale q                    the new residual

With 1 bit, q is the sign of m, and scale = mean |m| of the block. Numbers are added in float32:

    rank r of p receives slice r of every rank's codes and scales        alltoall
    adds scale q in float32, in the order of ranks, and codes the sum
    in the same way; what this leaves out goes to its residual
    sends the result to all ranks                                        allgather

Ranks of a node first add up m in their memory, and each codes a part of the sum (two_level.py).

So at all times, the sum of all results + the residuals of all ranks = the sum of all gradients. A
block that has NaN or infinity becomes NaN, and nothing of it stays in the residual.

Block scales and error feedback: SDP4Bit (Jia et al., arXiv 2410.15526); coding once on the way to
the sum and once on the way back, with the sum in between in more bits: EQuARX (arXiv 2506.17615);
signs: EF-SIGNSGD (Karimireddy et al., arXiv 1901.09847, algorithm 2).
"""

from dataclasses import dataclass

import numpy as np

from ..allreduce import ring
from ..allreduce.calls import encode as encode_call
from ..allreduce.elementwise import SUM, divide
from ..allreduce.gather import in_turn
from ..allreduce.kernel import move
from ..allreduce.two_level import in_lanes
from ..jit.compile import compiled
from .base import Method, State, block_of

BLOCK = 128  # numbers with one scale
MOST = {8: 127, 4: 7, 1: 1}  # the largest code


@compiled
def encode(words, scales, x, bits, most):
    """words = codes of x, (n,), scales = those of its blocks; x = what they leave out.

    Codes are `bits` wide, 32 / bits of them in an int32; they stand for -most ... most, of 1 bit
    for -1 and 1. `words` and `scales` may have room for more blocks, which get zeros.
    """
    a_word, number = 32 // bits, x.dtype.type
    words[:], scales[:] = 0, 0
    for b in range((x.size + BLOCK - 1) // BLOCK):
        first, last = b * BLOCK, min(x.size, (b + 1) * BLOCK)
        largest, total = 0.0, 0.0
        for i in range(first, last):
            size = abs(x[i])
            total += size
            if size > largest or size != size:
                largest = size
        scale = np.float32(largest / most if bits > 1 else total / (last - first))
        scales[b] = scale
        finite, over = scale < np.inf, np.float64(scale)
        for i in range(first, last):
            if not finite:
                code = 1
                x[i] = 0
            elif bits == 1:
                code = -1 if x[i] < 0 else 1
                x[i] -= number(code * over)
            else:
                code = 0 if over == 0 else int(np.rint(x[i] / over))
                code = min(max(code, -most), most)
                x[i] -= number(code * over)
            stored = code + most if bits > 1 else (code + 1) // 2
            words[i // a_word] |= np.int32(stored << (i % a_word * bits))


@compiled
def add_decoded(into, words, scales, bits, most):
    """into += the numbers that `words` and `scales` stand for."""
    a_word, mask, number = 32 // bits, (1 << bits) - 1, into.dtype.type
    for i in range(into.size):
        code = (np.int64(words[i // a_word]) >> (i % a_word * bits)) & mask
        value = 2 * code - 1 if bits == 1 else code - most
        scale = scales[i // BLOCK]
        into[i] += number(value * scale if scale < np.inf else np.nan)


@dataclass(frozen=True)
class Quantised(Method):
    """Send numbers of 8, 4 or 1 bit.

    With 1 bit, no number is zero, so elements between layers do not stay exactly zero.

    Args:
        bits: 8, 4 or 1

    Example:
        >>> Quantised(8).bytes(1_000_000, ranks=2)           # 4 000 000 without compression
        1031448
    """

    bits: int = 8
    remembers = True

    def __post_init__(self):
        if self.bits not in MOST:
            raise ValueError(f"bits must be 8, 4 or 1, got {self.bits!r}")

    def reduce(self, team, gradient: np.ndarray, state: State, op: str) -> None:
        left = state.residual
        gradient += left
        left[:] = 0
        if getattr(team, "single_node", True):
            self.exchange(gradient, left, team.rank, team.size, team.alltoall, team.allgather)
        else:
            self.between_nodes(team, gradient, left)
        divide(gradient, team.size if op == "mean" else 1)

    def between_nodes(self, team, gradient: np.ndarray, left: np.ndarray) -> None:
        """Add up on each node first: what leaves it is one sum, and not that of each rank."""
        n, route = gradient.size, team.lanes.route

        def edges_of(rows):
            return tuple(r * rows.shape[1] for r in range(len(rows) + 1))

        call, coded = (encode_call("allreduce", d, "sum") for d in (gradient.dtype, np.int32))

        def between(lane):
            def alltoall(rows):
                came, edges = rows.copy(), edges_of(rows)
                move(team, coded, in_turn, rows.ravel(), came.ravel(), (edges, edges), (), n, route)
                return came

            def allgather(row):
                rows = np.tile(row, (route.ranks, 1))
                edges, flat = edges_of(rows), rows.ravel()
                move(team, coded, ring.allgather, flat, flat, (edges, edges), (), n, route)
                return rows

            first = team.lanes.edges(n)[team.place]
            own = left[first : first + lane.size]
            self.exchange(lane, own, route.rank, route.ranks, alltoall, allgather)

        in_lanes(team, call, gradient, SUM, 1, between, number=2)

    def exchange(self, x, left, rank: int, ranks: int, alltoall, allgather) -> None:
        """Replace `x` (n,) by its sum over the ranks; `left` (n,) = what codes leave out."""
        kind, block = (self.bits, MOST[self.bits]), block_of(x.size, ranks, BLOCK)
        left[:] = x
        rows = self.rows(ranks, block)
        for r, (words, scales) in enumerate(map(self.parts, rows)):
            encode(words, scales, left[r * block : (r + 1) * block], *kind)
        total = np.zeros(block, np.float32)
        for words, scales in map(self.parts, alltoall(rows)):
            add_decoded(total, words, scales, *kind)

        first = min(rank * block, x.size)
        mine, (row,) = left[first : first + block], self.rows(1, block)
        total = total[: mine.size]
        encode(*self.parts(row), total, *kind)
        mine += total  # what this code leaves out of the sum
        x[:] = 0
        for r, (words, scales) in enumerate(map(self.parts, allgather(row))):
            add_decoded(x[r * block : (r + 1) * block], words, scales, *kind)

    def rows(self, ranks: int, block: int) -> np.ndarray:
        """A message for each rank, int32: the codes of `block` numbers, and the scales."""
        return np.zeros((ranks, block * self.bits // 32 + block // BLOCK), np.int32)

    def parts(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The codes in a message, and the scales, float32."""
        blocks = row.size // (BLOCK * self.bits // 32 + 1)
        return row[:-blocks], row[-blocks:].view(np.float32)

    def sent(self, n: int, ranks: int, layers: np.ndarray, itemsize: int) -> int:
        return 2 * (ranks - 1) * self.rows(1, block_of(n, ranks, BLOCK)).nbytes
