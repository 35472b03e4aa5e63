"""`Data`: samples and their targets. `Dataset`: data to learn from and data to judge by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch


def each_array(function: Callable[[np.ndarray], Any], arrays: Any) -> Any:
    """`function` of one array, or of each array of a tuple or dict, in the same structure."""
    if isinstance(arrays, dict):
        return {name: function(a) for name, a in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(function(a) for a in arrays)
    return function(arrays)


def _names(arrays: Any, what: str) -> dict[str, np.ndarray]:
    """Every array with the name that an error message calls it by."""
    if isinstance(arrays, dict):
        return {f"{what}[{name!r}]": a for name, a in arrays.items()}
    if isinstance(arrays, tuple):
        return {f"{what}[{i}]": a for i, a in enumerate(arrays)}
    return {what: arrays}


@dataclass(frozen=True)
class Data:
    """Samples and their targets.

    Attributes:
        inputs: Array of shape (n, ...), or a tuple or dict of such arrays (a model of several
            inputs).
        targets: Likewise, with the same n.
    """

    inputs: Any
    targets: Any

    @classmethod
    def of(cls, inputs: Any, targets: Any) -> Data:
        """Data from anything array-like, checked: every array has the same number of samples.

        Raises:
            ValueError: Lengths differ, or something has no samples axis.
        """
        listed = [
            tuple(a) if isinstance(a, list) and of_arrays(a) else a for a in (inputs, targets)
        ]
        inputs, targets = (each_array(np.asarray, a) for a in listed)
        named = [_names(inputs, "inputs"), _names(targets, "targets")]
        if not all(named):
            raise ValueError("no arrays at all: expected inputs and targets")
        arrays = named[0] | named[1]
        for name, array in arrays.items():
            if array.ndim == 0 or array.dtype == object:
                raise ValueError(
                    f"{name} is {array.dtype} of shape {array.shape}: "
                    "expected an array of numbers, samples first"
                )
        if len({len(a) for a in arrays.values()}) != 1:
            have = ", ".join(f"{name} {len(a)}" for name, a in arrays.items())
            raise ValueError(
                f"arrays of different numbers of samples: {have or 'no arrays at all'}"
            )
        return cls(inputs, targets)

    def __len__(self) -> int:
        """Samples."""
        return len(next(iter(_names(self.inputs, "").values())))

    def take(self, indices: np.ndarray | slice) -> Batch:
        """The samples at `indices` as (inputs, targets): a copy, or a view where it is a slice."""
        if isinstance(indices, slice):
            return each_array(lambda a: a[indices], self.inputs), each_array(
                lambda a: a[indices], self.targets
            )
        return (
            each_array(lambda a: a.take(indices, axis=0), self.inputs),
            each_array(lambda a: a.take(indices, axis=0), self.targets),
        )

    def order(self, seed: tuple[int, ...] | None, batch_size: int) -> Iterator[np.ndarray]:
        """The samples' indices in an order that `seed` decides (None: as they lie), in windows.

        A window is what is worth reading together: a whole number of global batches, all but the
        last window. Here it is everything at once.
        """
        n = len(self)
        yield np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)

    def read(self, windows: Iterable[list[np.ndarray]]) -> Iterator[Batch]:
        """The samples at each array of indices; windows are lists of such arrays."""
        for window in windows:
            for indices in window:
                yield self.take(indices)

    def part(self, samples: slice) -> Data:
        """The samples of a slice as data, no copy."""
        return type(self)(*self.take(samples))


def of_arrays(values: list) -> bool:
    """A list of arrays is several inputs, as in Keras; a list of numbers is one array."""
    return bool(values) and all(isinstance(v, np.ndarray) and v.ndim for v in values)


@dataclass(frozen=True)
class Dataset:
    """Data to learn from (`train`) and data kept out to judge by (`validation`).

    Attributes:
        name: Shown in tables and plots.
        classes: Number of classes where the targets are class labels 0 ... classes - 1, else None.
    """

    name: str
    train: Data
    validation: Data
    classes: int | None = None

    def __post_init__(self) -> None:
        for part in ("train", "validation"):
            if len(getattr(self, part)) == 0:
                raise ValueError(f"dataset '{self.name}': its {part} part has no samples")
        shapes = [
            each_array(lambda a: a.shape[1:], p.inputs) for p in (self.train, self.validation)
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"dataset '{self.name}': one sample's inputs are of shape {shapes[0]} to train on "
                f"and of shape {shapes[1]} to validate on; expected the same"
            )

    @property
    def inputs_shape(self) -> Any:
        """Shape of one sample's inputs (a tuple or dict of shapes where there are several)."""
        return each_array(lambda a: a.shape[1:], self.train.inputs)


def share(n: int, rank: int, ranks: int) -> slice:
    """Which of `n` things are rank's: contiguous, in rank order, sizes differ by at most one.

    >>> [share(10, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks} ranks: expected 0 <= rank < ranks")
    return slice(n * rank // ranks, n * (rank + 1) // ranks)


def shard(data: Data, rank: int, ranks: int) -> Data:
    """This rank's contiguous share of `data`, no copy; empty where ranks outnumber samples."""
    return data.part(share(len(data), rank, ranks))


def classes(train: Data, validation: Data) -> int | None:
    """Number of classes where targets are labels: one column of integers, none below 0."""
    targets = [train.targets, validation.targets]
    for t in targets:
        labels = not isinstance(t, (tuple, dict)) and t.size == len(t) and t.dtype.kind in "iu"
        if not labels or t.min(initial=0) < 0:
            return None
    return 1 + max(int(t.max(initial=0)) for t in targets)
