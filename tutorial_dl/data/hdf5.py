"""`Hdf5Data`: samples that stay in their HDF5 files and are read while the ranks compute.

    dataset = data.load("events_*.h5")                       # or a list, or a text file of paths
    for inputs, targets in data.Batches(dataset.train, batch_size=32).epoch(0): ...

blocks.py defines the order, ahead.py reads ahead on a thread, files.py finds the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np

from tutorial_dl.data import blocks
from tutorial_dl.data.ahead import Waited, ahead
from tutorial_dl.data.arrays import not_finite
from tutorial_dl.data.dataset import Batch, each_array
from tutorial_dl.data.files import DataError
from tutorial_dl.data.hdf5_files import Reader, Table

WINDOW = 64 << 20  # bytes, over all ranks together; up to two windows are held
SPLIT = 256  # number of stretches held out for validation


class Hdf5Data:
    """Samples in files, with the methods of `Data`: `len`, `take`, `order`, `read`, `part`.

    As attributes, `inputs` and `targets` have a `Column` in place of each name. `stretches` says
    which samples, in order: rows (file, first, number of samples), shape (k, 3); None: all.
    """

    def __init__(
        self,
        table: Table,
        inputs: Any,
        targets: Any,
        stretches: np.ndarray | None = None,
        window: int = WINDOW,
    ) -> None:
        if stretches is None:
            stretches = np.array([(i, 0, n) for i, n in enumerate(table.rows)])
        self.table, self.window = table, window
        self._names = inputs, targets
        self._file, self._first, self._length = stretches[stretches[:, 2] > 0].T
        self._ends = np.cumsum(self._length)

    @cached_property
    def inputs(self) -> Any:
        return each_array(partial(Column, self), self._names[0])

    @cached_property
    def targets(self) -> Any:
        return each_array(partial(Column, self), self._names[1])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, indices: np.ndarray | slice) -> Batch:
        with Reader(self.table) as reader:
            arrays = reader.take(*self._places(indices))
        return self._batch(arrays, slice(None))

    def not_a_number(self, indices: np.ndarray | slice) -> str | None:
        """In words: the first NaN or infinity in these samples, with its file and row; or None."""
        files, rows = self._places(indices)
        step = max(1, WINDOW // self.table.sample_bytes)
        with Reader(self.table) as reader:
            for first in range(0, len(rows), step):
                places = files[first : first + step], rows[first : first + step]
                for name, array in reader.take(*places).items():
                    if (at := not_finite(array)) is not None:
                        file, row = (one[at[0]] for one in places)
                        place = ", ".join(map(str, (row, *at[1:])))
                        return f"{self.table.shown[file]}: {name}[{place}] is {array[at]}"
        return None

    def order(self, seed: tuple[int, ...] | None, batch_size: int) -> Iterator[np.ndarray]:
        """Yield the sample indices in windows, in an order set by `seed` (blocks.py)."""
        window = self.window // self.table.sample_bytes
        return blocks.windows(*self._blocks, window, batch_size, seed)

    def read(self, windows: Iterable[list[np.ndarray]]) -> Iterator[Batch]:
        """Yield the samples at each array of indices, while the next window is being read."""
        arrays = None
        readings = ahead(windows, self._reading)
        try:
            for sizes, arrays in readings:
                begin = 0
                for size in sizes[:-1]:
                    yield self._batch(arrays, slice(begin, begin + size))
                    begin += size
                # The last batch is a copy, so that a caller who keeps it doesn't keep the window.
                last = self._batch({k: a[begin:].copy() for k, a in arrays.items()}, slice(None))
                del arrays
                yield last
                del last
        except Waited as error:
            raise DataError(f"{self.table.shown[0]} and others: {error} of the files") from None
        finally:
            readings.close()

    def rows(self, samples: slice) -> Hdf5Data:
        first, end, _ = samples.indices(len(self))
        return self._parts(np.array([[first, max(first, end)]]))

    def split(self, share: float) -> tuple[Hdf5Data, Hdf5Data]:
        """Split into (training, validation) data: the same split every time, in long stretches.

        A `share` of the samples is held out in up to 256 stretches at equal distances. So they
        resemble the others even if files are sorted, and no single samples need a seek.
        """
        n = len(self)
        out = min(n, max(1, round(share * n)))
        count = max(1, min(SPLIT, out, n - out))  # so that no stretch exceeds their distance
        ends = n * np.arange(1, count + 1) // count
        begins = ends - np.diff(out * np.arange(count + 1) // count)
        kept = np.stack([begins, ends], axis=1)
        rest = np.stack([np.concatenate([[0], ends[:-1]]), begins], axis=1)
        return self._parts(rest), self._parts(kept)

    def _parts(self, ranges: np.ndarray) -> Hdf5Data:
        """The samples from ranges[i, 0] up to ranges[i, 1], for each i; ranges do not overlap."""
        stretches = []
        begins = self._ends - self._length
        for low, high in ranges:
            if low >= high:
                continue
            here = slice(*np.searchsorted(self._ends, [low, high - 1], side="right") + [0, 1])
            skipped = np.maximum(0, low - begins[here])
            taken = np.minimum(self._ends[here], high) - begins[here] - skipped
            stretches.append(np.stack([self._file[here], self._first[here] + skipped, taken], 1))
        joined = np.concatenate([np.empty((0, 3), int), *stretches])
        return Hdf5Data(self.table, *self._names, joined, self.window)

    @cached_property
    def _blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """First sample and length of each block: a piece of a file, shorter for small data."""
        size = max(1, min(self.table.piece, -(-len(self) // 256)))
        low, high = self._first // size, -(-(self._first + self._length) // size)
        count = high - low
        stretch = np.repeat(np.arange(len(count)), count)
        nth = np.arange(len(stretch)) - np.repeat(np.cumsum(count) - count, count)
        begin = np.maximum((low[stretch] + nth) * size, self._first[stretch])
        end = np.minimum((low[stretch] + nth + 1) * size, (self._first + self._length)[stretch])
        sample = begin - self._first[stretch] + (self._ends - self._length)[stretch]
        return sample, end - begin

    def _places(self, indices: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
        """(file, row) of each sample."""
        if isinstance(indices, slice):
            indices = np.arange(*indices.indices(len(self)))
        indices = np.asarray(indices, int)
        if indices.size and not -len(self) <= indices.min() <= indices.max() < len(self):
            raise IndexError(
                f"sample indices must be below {len(self)}, got {indices.min()} to {indices.max()}"
            )
        indices = indices % max(1, len(self))
        stretch = np.searchsorted(self._ends, indices, side="right")
        offset = indices - (self._ends - self._length)[stretch]
        return self._file[stretch], self._first[stretch] + offset

    @contextmanager
    def _reading(self, check):
        """The thread's work: read a window's samples, return them with the size of each round."""
        with Reader(self.table, check) as reader:

            def read(window: list[np.ndarray]) -> tuple[list[int], dict[str, np.ndarray]]:
                sizes = [len(indices) for indices in window]
                return sizes, reader.take(*self._places(np.concatenate(window)))

            yield read

    def _batch(self, arrays: Mapping[str, np.ndarray], samples: slice) -> Batch:
        inputs, targets = (each_array(lambda key: arrays[key][samples], n) for n in self._names)
        return inputs, targets


class Column:
    """One dataset of the files, described like a numpy array but not held in memory."""

    def __init__(self, data: Hdf5Data, name: str) -> None:
        self._data, self._field = data, data.table.fields[name]
        self.shape, self.dtype = (len(data), *self._field.shape), self._field.dtype
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Column({self._field.name!r}, {self.shape}, {self.dtype})"

    # These are for a column of scalars. The first call reads the whole column.

    def min(self, initial: int | None = None):
        return self._extremes[0] if initial is None else min(self._extremes[0], initial)

    def max(self, initial: int | None = None):
        return self._extremes[2] if initial is None else max(self._extremes[2], initial)

    def argmin(self) -> int:
        return self._extremes[1]

    def argmax(self) -> int:
        return self._extremes[3]

    @cached_property
    def _extremes(self) -> tuple:
        """(least, index of its first place, greatest, likewise), read in pieces of 1 MiB."""
        least, greatest, first = [], [], 0
        step = max(1, (1 << 20) // max(1, self._field.nbytes))
        with Reader(self._data.table) as reader:
            for first in range(0, len(self), step):
                places = self._data._places(slice(first, first + step))
                piece = reader.take(*places, [self._field.name])[self._field.name].ravel()
                least.append((piece.min(), first + int(piece.argmin())))
                greatest.append((piece.max(), -first - int(piece.argmax())))
        (low, at), (high, minus) = min(least), max(greatest)
        return low, at, high, -minus
