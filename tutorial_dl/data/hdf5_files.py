"""HDF5 files as one table: checked before any sample is read, then read in long stretches."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np

from tutorial_dl.data.files import DataError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
PIECE = 1 << 20  # approximate number of bytes per read
GAP = 1 << 16  # bytes; shorter gaps are read and discarded rather than skipped
LARGE_CHUNK = 16 << 20  # bytes; up to this chunk size, a piece is a whole number of chunks
OPEN = 16  # number of files kept open


@dataclass(frozen=True)
class Field:
    """One dataset of every file: its name, and one sample's shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes per sample."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Table:
    """Files that hold the same fields.

    `chunk` is how many samples a file stores (and compresses) together; 1 if it is contiguous.
    """

    files: tuple[Path, ...]
    shown: tuple[Path, ...]  # what error messages show: the originals where `files` are copies
    rows: tuple[int, ...]  # samples of each file
    fields: dict[str, Field]
    chunk: int

    @property
    def sample_bytes(self) -> int:
        return max(1, sum(field.nbytes for field in self.fields.values()))

    @property
    def piece(self) -> int:
        """Samples per read: about 1 MiB, and a whole number of chunks."""
        piece = max(1, PIECE // self.sample_bytes)
        if self.chunk * self.sample_bytes <= LARGE_CHUNK:
            piece = -(-piece // self.chunk) * self.chunk
        return piece


def look(
    files: Iterable[Path],
    names: Iterable[str],
    shown: Iterable[Path] | None = None,
    like: Table | None = None,
) -> Table:
    """Open every file and check what it holds, without reading samples; DataError names the file.

    Each file has a dataset of every name, samples first, all of one length. Samples must match
    those of the table `like`, or else of the first file that has samples. Error messages show the
    paths `shown`.
    """
    files, names = tuple(files), tuple(dict.fromkeys(names))
    shown = files if shown is None else tuple(shown)
    first, fields = (None, {}) if like is None else (like.shown[0], like.fields)
    rows, chunk = [], 0
    for path, name in zip(files, shown, strict=True):
        with open_file(path, name) as file:
            found = [_dataset(file, key, name) for key in names]
            lengths = {key: len(one) for key, one in zip(names, found, strict=True)}
            if len(set(lengths.values())) > 1:
                have = ", ".join(f"{key!r} has {n}" for key, n in lengths.items())
                raise DataError(f"{name}: datasets of different numbers of samples: {have}")
            rows.append(len(found[0]))
            if rows[-1] == 0:
                continue  # its shapes and types don't matter
            here = {key: _field(key, one) for key, one in zip(names, found, strict=True)}
            if first is None:
                first, fields = name, here
            chunk = chunk or max(one.chunks[0] if one.chunks else 1 for one in found)
            for key in names:
                for what in ("shape", "dtype"):
                    have, want = getattr(here[key], what), getattr(fields[key], what)
                    if have != want:
                        raise DataError(
                            f"{name}: {key!r} has samples of {what} {have}, but {first} has {want}"
                        )
    if sum(rows) == 0:
        more = len(files) - 1
        others = f" and {more} other file{'s' * (more > 1)}" if more else ""
        raise DataError(f"no samples at all in {shown[0]}{others}")
    return Table(files, shown, tuple(rows), fields, chunk)


def open_file(path: Path, shown: Path):
    """Open an HDF5 file as h5py.File; raises a one-line DataError if that is not possible."""
    import h5py

    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            # The format begins at 0, or at 512, 1024, 2048 ... after a user block.
            places = [0] + [512 << i for i in range(64) if 512 << i < size]
            if not any(file.seek(p) == p and file.read(8) == SIGNATURE for p in places):
                what = "not an HDF5 file, or its header is lost" if size else "empty (0 bytes)"
                raise DataError(f"{shown}: it is {what}")
        return h5py.File(path, "r", locking="best-effort")
    except FileNotFoundError:
        raise DataError(f"{shown}: there is no such file") from None
    except DataError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        whole = re.search(r"truncated file: .*stored_eof = (\d+)", str(error))
        if whole:
            told = f"it is truncated: only {size} of {whole[1]} bytes are there"
        else:
            told = f"it can't be opened (truncated or damaged?): {_line(error)}"
        raise DataError(f"{shown}: {told}") from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _dataset(file, key: str, shown: Path):
    """The dataset `key` of an open file, which has a samples axis and holds numbers."""
    import h5py

    found = file.get(key)
    if found is None:
        raise DataError(
            f"{shown}: it has no {key!r}; it has {', '.join(sorted(file)) or 'nothing'}"
        )
    if not isinstance(found, h5py.Dataset):
        raise DataError(f"{shown}: {key!r} is a group ({', '.join(sorted(found))}), not a dataset")
    if not found.shape:
        raise DataError(f"{shown}: {key!r} has shape {found.shape}; expected samples first")
    if found.dtype.kind not in "fiub":
        raise DataError(f"{shown}: {key!r} has type {found.dtype}; expected numbers")
    return found


def _field(key: str, dataset) -> Field:
    return Field(key, tuple(dataset.shape[1:]), dataset.dtype.newbyteorder("="))


class Reader:
    """Reads samples of a table's files and keeps a few files open. Not thread-safe.

    `check` is called between two pieces; whatever it raises ends the reading.
    """

    def __init__(self, table: Table, check: Callable[[], None] = lambda: None) -> None:
        self.table, self.check = table, check
        self._open: OrderedDict[int, tuple[object, dict]] = OrderedDict()  # file, datasets

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error) -> None:
        while self._open:
            self._open.popitem()[1][0].close()

    def take(
        self, file: np.ndarray, row: np.ndarray, names: Iterable[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the samples (file[i], row[i]) in this order, as arrays by name.

        Whatever the order, every file is read from front to back; samples close to each other are
        read together, at most one piece at a time.
        """
        names = self.table.fields if names is None else names
        fields = [self.table.fields[name] for name in names]
        out = {f.name: np.empty((len(row), *f.shape), f.dtype) for f in fields}
        order = np.lexsort((row, file))
        file, row = file[order], row[order]
        gap = 1 + GAP // max(1, sum(field.nbytes for field in fields))
        apart = (np.diff(file) != 0) | (np.diff(row) > gap) | (np.diff(row // self.table.piece) > 0)
        edges = [0, *(np.flatnonzero(apart) + 1), len(row)] if len(row) else []
        for begin, end in pairwise(edges):
            self.check()
            first, last = int(row[begin]), int(row[end - 1]) + 1
            for name, array in out.items():
                stretch = self._stretch(int(file[begin]), name, first, last)
                if (np.diff(row[begin:end]) != 1).any():  # some are skipped, or wanted twice
                    stretch = stretch[row[begin:end] - first]
                array[order[begin:end]] = stretch
        return out

    def _stretch(self, number: int, name: str, first: int, last: int) -> np.ndarray:
        shown = self.table.shown[number]
        try:
            return self._datasets(number)[name][first:last]
        except (OSError, RuntimeError, KeyError) as error:
            raise DataError(
                f"{shown}: {name!r} can't be read, samples {first} to {last - 1}: {_line(error)}"
            ) from None

    def _datasets(self, number: int) -> dict:
        """The datasets of file `number`, opened if need be and checked to be unchanged."""
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number][1]
        table, shown = self.table, self.table.shown[number]
        file, found = open_file(table.files[number], shown), {}
        self._open[number] = file, found
        if len(self._open) > OPEN:
            self._open.popitem(last=False)[1][0].close()
        for key, field in table.fields.items():
            found[key] = _dataset(file, key, shown)
            if _field(key, found[key]) != field or len(found[key]) != table.rows[number]:
                raise DataError(f"{shown}: it has changed since training began ({key!r})")
        return found
