"""Streams over ranks: rank 0 reads each batch, and every rank gets its share of it.

    rank 0, thread   read batch k + 1, check it, pack the shares of ranks 1, 2, ...
    rank 0           batch k: sizes to all ranks | share r to rank r | compute its own share
    rank r                    sizes              | share r           | compute it

One rank reads, so that all ranks agree on a stream that differs each time it is read (shuffled
without a seed, augmented at random), and nothing is read or computed twice. Shares are those of
data in memory (data.share), so that the number of ranks changes no result.
"""

import math
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np

from numba_kernels.team.bytes import broadcast, pack, unpack

from ..data import Data, DataError, Dataset
from ..data.ahead import ahead
from ..data.dataset import share
from ..data.elements import samples_of, share_of
from ..data.streams import Stream
from ..replica.base import Batch

HEAD = 100  # samples of the first batch that every rank gets


class Ready(NamedTuple):
    """A batch that the thread has prepared, or what comes in its place."""

    own: Batch | None  # rank 0's share; None after the last batch
    samples: int
    words: np.ndarray  # for the other ranks: their share and `samples`, or what has failed
    lengths: list[int]  # words of each rank

    @classmethod
    def packed(cls, own: Batch | None, samples: int, told: list) -> "Ready":
        words, lengths = pack(told)
        return cls(own, samples, words, [0, *lengths])


class StreamBatches:
    """This rank's share of every batch of a stream, as `data.Batches` for data in memory.

    Args:
        stream: The same on every rank; rank 0 reads it. `opened` before.
        team: The ranks that share each batch. All of them call `epoch`, and iterate alike.
        seed: Seed of the shuffling, where the order is ours to choose (PyDataset).
        shuffle: False keeps the order of the stream.
        anew: Begin at the beginning of the stream in every epoch, if possible.
    """

    def __init__(
        self, stream: Stream, team: Any, seed: int = 0, shuffle: bool = True, anew: bool = False
    ):
        self.data, self.team, self.seed = stream, team, seed
        self.shuffle, self.anew = shuffle, anew
        self.rank, self.ranks = team.rank, team.size
        self._begun: weakref.WeakSet[Iterator[Batch]] = weakref.WeakSet()

    batch_size = property(lambda self: self.data.batch_size)

    @property
    def rounds(self) -> int | None:
        """Batches per epoch, if known."""
        return self.data.steps

    def epoch(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield this rank's share of each batch; a share without samples has arrays of length 0.

        The first `start` batches are read and dropped. Where a stream is the same each time it is
        read, training that stopped in the middle of an epoch so continues exactly there.

        Raises:
            DataError: On all ranks, if the stream fails, or a batch can't be used.
        """
        rounds = self._rounds(epoch, start)
        self._begun.add(rounds)
        return rounds

    def close(self) -> None:
        """Close epochs that were not read to the end, and the threads that read for them."""
        for rounds in list(self._begun):
            rounds.close()

    def _rounds(self, epoch: int, start: int) -> Iterator[Batch]:
        number, samples = start, 0
        # The thread takes as long as the user's code does; other ranks report that they wait.
        prepared = iter(())
        if self.rank == 0:
            seed = self.seed if self.shuffle else None
            elements = self.data.source.epoch(epoch, start, self.data.given, seed, self.anew)
            prepared = ahead(elements, self._preparing(elements), math.inf)
        try:
            while True:
                ready = self._next(prepared, epoch, number) if self.rank == 0 else None
                batch, of_all = self._hand_out(ready)
                if batch is None:
                    break
                number, samples = number + 1, samples + of_all
                yield batch
                del ready, batch
        finally:
            if self.rank == 0:
                prepared.close()
        if start == 0:
            self.data.steps, self.data.samples = number, samples

    def _preparing(self, elements: Any) -> Callable:
        """The thread's work."""

        @contextmanager
        def preparing(check):
            with closing(elements):  # on the thread that reads them

                def prepare(element: Any) -> Ready:
                    batch = self.data.batch(element)
                    samples = samples_of(batch)
                    own, *others = (
                        share_of(batch, share(samples, rank, self.ranks))
                        for rank in range(self.ranks)
                    )
                    return Ready.packed(own, samples, [(one, samples) for one in others])

                yield prepare

        return preparing

    def _next(self, prepared: Iterator[Ready], epoch: int, number: int) -> Ready:
        """Rank 0: the next batch, or the end; a failure is told to all ranks."""
        others = self.ranks - 1
        try:
            with self.data.telling(epoch, number):
                return next(prepared, None) or Ready.packed(None, 0, [(None, 0)] * others)
        except DataError as error:
            self._hand_out(Ready.packed(None, 0, [str(error)] * others))
            raise

    def _hand_out(self, ready: Ready | None) -> tuple[Batch | None, int]:
        """(this rank's share, samples of all ranks); the share is None after the last batch.

        Collective; `ready` is rank 0's.
        """
        if self.ranks == 1:
            return ready.own, ready.samples
        lengths = np.zeros(self.ranks, np.int64)
        if ready is not None:
            lengths[:] = ready.lengths
        self.team.broadcast(lengths)
        mine = np.empty(lengths[self.rank], np.int64)
        self.team.scatter(ready and ready.words, mine, lengths)
        if ready is not None:
            return ready.own, ready.samples
        if isinstance(found := unpack(mine), str):
            raise DataError(found)
        return found


def opened(dataset: Dataset, team: Any) -> Dataset:
    """The dataset; all ranks know the first samples of its streams. Collective.

    Raises:
        DataError: On all ranks, if rank 0 can't read them.
    """
    for part in (dataset.train, dataset.validation):
        if isinstance(part, Stream) and part.head is None:
            _open(part, team)
    return dataset


def _open(stream: Stream, team: Any) -> None:
    told: dict | DataError = {}
    if team.rank == 0:
        try:
            batch, told = stream.look()
            told["batch_size"] = size = samples_of(batch)
            told["head"] = share_of(batch, slice(0, size if team.size == 1 else HEAD))
        except DataError as error:
            told = error
    told = broadcast(team, told)
    if isinstance(told, DataError):
        raise told
    stream.batch_size, stream.steps = told["batch_size"], told["steps"]
    stream.known = stream.steps
    if stream.steps is not None:
        stream.samples = stream.steps * stream.batch_size
    stream.head = Data(*told["head"])


def sizes(dataset: Dataset, batch_size: int) -> dict[str, int]:
    """The settings of a run that are numbers of samples, or of batches for streams (0: unknown)."""
    found = {}
    for what, part in (("training", dataset.train), ("validation", dataset.validation)):
        if isinstance(part, Stream):
            found[f"{what} batches"] = part.known or 0
        else:
            found[f"{what} samples"] = 0 if part is None else len(part)
    if not isinstance(dataset.train, Stream):
        found["batch size"] = batch_size
    return found


def check_strategy(dataset: Dataset, strategy: Any, with_master: bool) -> None:
    """Raise ValueError if a strategy can't train on this dataset."""
    streams = any(isinstance(part, Stream) for part in (dataset.train, dataset.validation))
    if streams and (with_master or strategy.updates_a_step > 1):
        raise ValueError(
            f"strategy {strategy.name!r} hands out samples by their number, and data "
            f"'{dataset.name}' are a stream: use strategy 'synchronous', or data in arrays or HDF5 "
            "files"
        )
    if streams and strategy.holding.words:
        instead = "shard 1, or data" if strategy.holding.stage else "data"
        raise ValueError(
            f"{strategy.name}: this needs samples by number, and data '{dataset.name}' are a "
            f"stream: use {instead} in arrays or HDF5 files"
        )
    if dataset.validation is None and with_master:
        raise ValueError(f"strategy {strategy.name!r} needs validation data")


def check_epochs(dataset: Dataset, epochs: int) -> None:
    """Raise ValueError if a stream can't be read for so many epochs in all."""
    for part in (dataset.train, dataset.validation):
        if isinstance(part, Stream) and part.source.once and part.given is None and epochs > 1:
            raise ValueError(
                f"{part.name}: {part.source.words} can be read once, so not for {epochs} epochs: "
                "give data.stream(source, steps=BATCHES_PER_EPOCH), or a function that returns a "
                "new one"
            )


def print_notes(dataset: Dataset, team: Any, batch_size: int) -> None:
    """Print what does not apply to the streams, if anything, to stderr on rank 0."""
    notes, train = [], dataset.train
    if isinstance(train, Stream) and batch_size not in (32, train.batch_size):
        notes.append(
            f"batch_size={batch_size} does not apply: {train.name} is a stream, with "
            f"{train.batch_size} samples in its first batch"
        )
    for part in (dataset.train, dataset.validation):
        if isinstance(part, Stream) and part.source.note:
            notes.append(part.source.note)
    for note in dict.fromkeys(notes):
        if team.rank == 0:
            print(f"note: {note}", file=sys.stderr, flush=True)
