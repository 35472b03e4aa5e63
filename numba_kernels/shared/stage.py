"""The stage: a staging buffer that the node's ranks share, for ordinary arrays in pieces.

Every rank has a part of it (sizes in node_array.py). Slice i of a vector is [edges[i],
edges[i + 1]), cut into pieces of `width` elements; piece k of every slice uses buffer k & 1.
"""

from ..jit.compile import compiled
from .node_array import CHUNK, LEAD, SHORT, STAGE, STAGE_STRIDE, elements_at


@compiled
def piece(edges, slice_, width, number):
    """Return [first, last) of piece `number` of a slice, as places in the vector; may be empty."""
    low = min(edges[slice_] + number * width, edges[slice_ + 1])
    return low, min(low + width, edges[slice_ + 1])


@compiled
def count_pieces(edges, width):
    longest = 0
    for slice_ in range(edges.size - 1):
        longest = max(longest, edges[slice_ + 1] - edges[slice_])
    return (longest + width - 1) // width


@compiled
def on_stage(node, x, rank, number):
    """Return the buffer for piece `number` in `rank`'s part: CHUNK bytes, of x's dtype."""
    start = node[STAGE] + rank * STAGE_STRIDE + 2 * SHORT + (number & 1) * CHUNK
    return elements_at(start, x, CHUNK // x.itemsize)


@compiled
def short_stage(node, x, rank, turn):
    return elements_at(node[STAGE] + rank * STAGE_STRIDE + (turn & 1) * SHORT, x, x.size)


@compiled
def lead_stage(node, x, rank, turn):
    start = node[STAGE] + rank * STAGE_STRIDE + 2 * (SHORT + CHUNK) + (turn & 1) * LEAD
    return elements_at(start, x, x.size)
