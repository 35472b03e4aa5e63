"""Metrics on the samples kept out, each rank evaluating its share of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..data import Data, shard
from ..replica.base import Batch, Replica


def evaluate(team, replica: Replica, data: Data, batch_size: int) -> dict[str, float]:
    """Metrics over all of `data`, the same on every rank, each sample counted once.

    Rank r looks at the r-th share of the samples; shares are averaged by their sizes. Metrics must
    be means over samples (losses, accuracies): others can't be put together from shares.
    """
    share = shard(data, team.rank, team.size)
    found = replica.evaluate(slices(share, batch_size))
    samples = found.pop("samples")
    # A rank without samples may not know the metrics' names; the last one has the largest share.
    names = broadcast_text(team, ",".join(found)).split(",")
    sums = np.array([samples] + [samples * found.get(name, 0.0) for name in names])
    total, *sums = team.allreduce(sums) if team.size > 1 else sums
    return {name: float(value / total) for name, value in zip(names, sums, strict=True)}


def slices(data: Data, batch_size: int) -> Iterable[Batch]:
    """`data` in order, in batches; the last one may be smaller."""
    for first in range(0, len(data), batch_size):
        yield data.take(slice(first, first + batch_size))


def broadcast_text(team, text: str) -> str:
    """The last rank's `text` on every rank (as a vector of float32: one code a letter)."""
    root = team.size - 1
    codes = np.frombuffer(text.encode(), np.uint8).astype(np.float32)
    length = team.broadcast(np.array([codes.size], np.float64), root)
    if team.rank != root:
        codes = np.empty(int(length[0]), np.float32)
    return team.broadcast(codes, root).astype(np.uint8).tobytes().decode()
