"""Metrics and predictions, with each rank computing its share of the samples."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import numpy as np

from numba_kernels.team.bytes import broadcast

from ..data import Batches, Data, Hdf5Data, Stream, shard
from ..data.dataset import each_array, of_arrays
from ..data.elements import samples_of
from ..replica.base import Batch, Replica, measure, metrics_of
from .handing_out import StreamBatches


class Sums:
    """The numbers of `Replica.measure` as one vector, float64, which ranks can add up and send.

    Args:
        shapes: The shape of each number or array, by name; () for "samples".
    """

    def __init__(self, shapes: dict[str, tuple[int, ...]]):
        self.shapes = shapes

    @classmethod
    def from_rank(cls, team, found: dict, root: int) -> "Sums":
        """What rank `root` has found. A rank without samples may not know all names. Collective."""
        return cls(broadcast(team, {name: np.shape(value) for name, value in found.items()}, root))

    def flat(self, found: dict) -> np.ndarray:
        """The vector of what was measured; zeros for what is missing."""
        parts = [np.ravel(found.get(n, np.zeros(shape))) for n, shape in self.shapes.items()]
        return np.concatenate([np.zeros(0), *parts], dtype=np.float64)

    def by_name(self, vector) -> dict[str, np.ndarray]:
        """The reverse of `flat`."""
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes.values()], dtype=int)
        parts = np.split(np.asarray(vector), ends)[:-1]
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


def evaluate(
    team,
    replica: Replica,
    data: Data,
    batch_size: int,
    part: Callable[[Batch], Batch] = lambda batch: batch,
) -> dict[str, float]:
    """Metrics over all of `data`, the same on every rank, each sample counted once.

    Rank r measures the r-th share of the samples, and the ranks' sums are added up
    (`Replica.measure`). The model is given `part(batch)` of each batch.
    """
    whole = replica.traits.whole_batches
    if whole and isinstance(data, Stream) and team.size > 1:
        raise ValueError(
            "a loss or a metric of this model is no mean over samples, and ranks share each batch "
            "of a stream: give validation data in arrays or HDF5 files"
        )
    with closing(_shares(team, data, batch_size, whole)) as batches:
        # Where ranks compute together, a rank without samples must take part in every batch
        found = measure(
            replica,
            (part(b) for b in batches if replica.traits.measures_together or samples_of(b)),
        )
    return metrics_over(team, replica, summed(team, found))


def summed(team, found: dict) -> dict[str, np.ndarray]:
    """The numbers that each rank has found, added up over the ranks. Collective."""
    sums = Sums.from_rank(team, found, team.size - 1)  # its shares of samples are the largest
    vector = sums.flat(found)
    if team.size > 1:
        team.allreduce(vector)
    return sums.by_name(vector)


def metrics_over(team, replica: Replica, sums: dict) -> dict[str, float]:
    """The metrics that `sums`, the same on all ranks, amount to. Collective."""
    last = team.size - 1  # another rank's model may lack metrics, if it has had no samples yet
    return broadcast(team, metrics_of(replica, sums) if team.rank == last else None, last)


def _shares(team, data, batch_size: int, whole: bool = False) -> Iterator[Batch]:
    """This rank's samples, in batches; of a stream its share of each batch, which may be empty.

    `whole`: the batches are those of one process.
    """
    if isinstance(data, Stream):
        return StreamBatches(data, team, shuffle=False, anew=True).epoch()
    share = shard(data, team.rank, team.size, batch_size if whole else 1)
    return Batches(share, batch_size, shuffle=False).epoch()


def predict(team, replica: Replica, inputs, batch_size: int):
    """The model's outputs for all of `inputs`, in order, on every rank; each computes its share.

    `inputs` may also be data with targets, for example of a file or a stream; the targets are
    ignored.
    """
    if isinstance(inputs, Stream):
        return _predict_stream(team, replica, inputs)
    data = inputs
    if not isinstance(inputs, Data | Hdf5Data):
        data = Data.of(inputs, np.zeros(_samples(inputs)))
    share = shard(data, team.rank, team.size)
    with closing(Batches(share, batch_size, shuffle=False).epoch()) as batches:
        parts = predictions(replica, (x for x, *_ in batches), data.take(slice(0, 1))[0])
    return _join(team, parts)


def predictions(replica: Replica, inputs: Iterable, one) -> list:
    """The outputs for each of `inputs`; of none, a list with outputs of length 0.

    `one` has the inputs of one sample. Every rank calls it, each with any number of inputs.
    """
    if replica.traits.measures_together:
        return replica.predictions(inputs, one)
    return [replica.predict(x) for x in inputs] or [
        each_array(lambda a: a[:0], replica.predict(one))
    ]


def _predict_stream(team, replica: Replica, stream: Stream):
    """Each rank computes its share of every batch; the outputs are joined batch by batch."""
    one = stream.take(slice(0, 1))[0]
    with closing(_shares(team, stream, 0)) as batches:
        shares = ([x] if samples_of((x,)) else [] for x, *_ in batches)
        return _join(None, [_join(team, predictions(replica, each, one)) for each in shares])


def _samples(inputs) -> int:
    while isinstance(inputs, tuple | dict) or (isinstance(inputs, list) and of_arrays(inputs)):
        inputs = next(iter(inputs.values() if isinstance(inputs, dict) else inputs))
    return len(inputs)


def _join(team, parts: list):
    """Concatenate the parts, of all ranks of a team if there is one, keeping their structure."""
    first = parts[0]
    if isinstance(first, dict):
        return {name: _join(team, [part[name] for part in parts]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(_join(team, [part[i] for part in parts]) for i in range(len(first)))
    mine = np.concatenate(parts)
    if team is None:
        return mine
    rows = team.allgather(mine.reshape(-1))
    return np.concatenate([row.reshape(-1) for row in rows]).reshape(-1, *mine.shape[1:])
