"""Metrics and predictions, with each rank computing its share of the samples."""

from collections.abc import Callable
from contextlib import closing

import numpy as np

from numba_kernels.team.bytes import broadcast_text

from ..data import Batches, Data, shard
from ..data.dataset import each_array, of_arrays
from ..replica.base import Batch, Replica


def evaluate(
    team,
    replica: Replica,
    data: Data,
    batch_size: int,
    part: Callable[[Batch], Batch] = lambda batch: batch,
) -> dict[str, float]:
    """Metrics over all of `data`, the same on every rank, each sample counted once.

    Rank r evaluates the r-th share of the samples; the results are averaged, weighted by sizes.
    Metrics must be means over samples (losses, accuracies): others can't be averaged. The model
    is given `part(batch)` of each batch.
    """
    share = shard(data, team.rank, team.size)
    with closing(Batches(share, batch_size, shuffle=False).epoch()) as batches:
        found = replica.evaluate(map(part, batches))
    samples = found.pop("samples")
    # A rank without samples may not know the metrics' names; the last one has the largest share.
    names = broadcast_text(team, ",".join(found)).split(",")
    sums = np.array([samples] + [samples * found.get(name, 0.0) for name in names])
    total, *sums = team.allreduce(sums) if team.size > 1 else sums
    return {name: float(value / total) for name, value in zip(names, sums, strict=True)}


def predict(team, replica: Replica, inputs, batch_size: int):
    """The model's outputs for all of `inputs`, in order, on every rank; each computes its share.

    `inputs` may also be data with targets, for example of a file; the targets are ignored.
    """
    data = inputs if hasattr(inputs, "part") else Data.of(inputs, np.zeros(_samples(inputs)))
    share = shard(data, team.rank, team.size)
    with closing(Batches(share, batch_size, shuffle=False).epoch()) as batches:
        parts = [replica.predict(x) for x, _ in batches]
    if not parts:  # a share without samples still needs outputs, of length 0
        one = replica.predict(data.take(slice(0, 1))[0])
        parts = [each_array(lambda a: a[:0], one)]
    return _join(team, parts)


def _samples(inputs) -> int:
    while isinstance(inputs, tuple | dict) or (isinstance(inputs, list) and of_arrays(inputs)):
        inputs = next(iter(inputs.values() if isinstance(inputs, dict) else inputs))
    return len(inputs)


def _join(team, parts: list):
    """Concatenate the parts of all ranks, keeping their structure."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _join(team, [part[name] for part in parts]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(_join(team, [part[i] for part in parts]) for i in range(len(first)))
    mine = np.concatenate(parts)
    rows = team.allgather(mine.reshape(-1))
    return np.concatenate([row.reshape(-1) for row in rows]).reshape(-1, *mine.shape[1:])
