"""Streams over ranks: rank 0 reads each batch, and every rank gets its share of it.

    rank 0, thread   read batch k + 1, check it, pack the shares of ranks 1, 2, ...
    rank 0           batch k: header to all ranks | share r to rank r | compute its own share
    rank r                    header              | share r           | compute it

One rank reads, so that all ranks agree on a stream that differs each time it is read (shuffled
without a seed, augmented at random), and nothing is read or computed twice. Shares are those of
data in memory (data.share), so that the number of ranks changes no result.
"""

import json
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np

from numba_kernels.team.bytes import broadcast_text

from ..data import Data, DataError, Dataset
from ..data.ahead import ahead
from ..data.dataset import share
from ..data.elements import samples_of, share_of
from ..data.packing import form_of, pack, unpack
from ..data.streams import Stream
from ..replica.base import Batch

BATCH, END, FAILED = range(3)  # what a header announces
KIND, SAMPLES, NEW_FORM, LENGTHS = range(4)  # its words; then the words for each rank
HEAD = 100  # samples of the first batch that every rank gets


class Ready(NamedTuple):
    """A batch that the thread has prepared."""

    own: Batch  # rank 0's share
    samples: int
    form: list
    words: np.ndarray  # the other ranks' shares
    lengths: list[int]  # words of each rank


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
        form, number, samples = None, start, 0
        # The thread takes as long as the user's code does; other ranks report that they wait.
        prepared = iter(())
        if self.rank == 0:
            seed = self.seed if self.shuffle else None
            elements = self.data.source.epoch(epoch, start, self.data.given, seed, self.anew)
            prepared = ahead(elements, self._preparing(elements), math.inf)
        try:
            while True:
                ready = self._next(prepared, epoch, number) if self.rank == 0 else None
                if self.ranks == 1:
                    if ready is None:
                        break
                    batch, of_all = ready.own, ready.samples
                else:
                    batch, of_all, form = self._hand_out(ready, form)
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
                    shares = [
                        share_of(batch, share(samples, rank, self.ranks))
                        for rank in range(self.ranks)
                    ]
                    words, lengths = pack(shares[1:])
                    return Ready(shares[0], samples, form_of(batch), words, [0, *lengths])

                yield prepare

        return preparing

    def _next(self, prepared: Iterator[Ready], epoch: int, number: int) -> Ready | None:
        """Rank 0: the next batch, None after the last one; a failure is told to all ranks."""
        try:
            with self.data.telling(epoch, number):
                return next(prepared, None)
        except DataError as error:
            if self.ranks > 1:
                self._announce(FAILED)
                broadcast_text(self.team, str(error), 0)
            raise

    def _announce(self, kind: int, *numbers: int) -> np.ndarray:
        header = np.zeros(LENGTHS + self.ranks, np.int64)
        header[: 1 + len(numbers)] = kind, *numbers
        return self.team.broadcast(header)

    def _hand_out(self, ready: Ready | None, form: list | None) -> tuple:
        """(this rank's share, samples of all ranks, form); the share is None after the last batch.

        Collective; `ready` is rank 0's, `form` that of the batch before.
        """
        if self.rank:
            header = self._announce(0)
        elif ready is None:
            header = self._announce(END)
        else:
            header = self._announce(BATCH, ready.samples, ready.form != form, *ready.lengths)
        if header[KIND] == FAILED:
            raise DataError(broadcast_text(self.team, "", 0))
        if header[KIND] == END:
            return None, 0, form
        if header[NEW_FORM]:
            form = json.loads(broadcast_text(self.team, json.dumps(ready and ready.form), 0))
        lengths, samples = header[LENGTHS:], int(header[SAMPLES])
        mine = np.empty(lengths[self.rank], np.int64)
        self.team.scatter(ready and ready.words, mine, lengths)
        if ready is not None:
            return ready.own, samples, form
        own = share(samples, self.rank, self.ranks)
        return unpack(form, own.stop - own.start, mine), samples, form


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
    told, words = {}, np.empty(0, np.int64)
    if team.rank == 0:
        try:
            batch, told = stream.look()
            told["batch_size"] = size = samples_of(batch)
            told["samples"] = size if team.size == 1 else min(size, HEAD)
            head = share_of(batch, slice(0, told["samples"]))
            words, _ = pack([head])
            told |= {"form": form_of(head), "words": len(words)}
        except DataError as error:
            told = {"error": str(error)}
            failed = error
    if team.size > 1:
        told = json.loads(broadcast_text(team, json.dumps(told), 0))
    if "error" in told:
        if team.rank == 0:
            raise failed
        raise DataError(told["error"])
    if team.size > 1:
        words = words if team.rank == 0 else np.empty(told["words"], np.int64)
        team.broadcast(words)
    stream.batch_size, stream.steps = told["batch_size"], told["steps"]
    stream.known = stream.steps
    if stream.steps is not None:
        stream.samples = stream.steps * stream.batch_size
    stream.head = Data(*unpack(told["form"], told["samples"], words))


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


def tell(dataset: Dataset, team: Any, batch_size: int) -> None:
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
