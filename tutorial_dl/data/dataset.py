"""`Data`: samples and their targets. `Dataset`: training data and validation data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from tutorial_dl.data.arrays import array_of, not_finite

# (inputs, targets), or (inputs, targets, weights of samples): arrays, or tuples or dicts of arrays,
# samples first
Batch = tuple[Any, ...]


def each_array(function: Callable[[np.ndarray], Any], arrays: Any) -> Any:
    """Apply `function` to one array, or to each array of a tuple or dict; keeps the structure."""
    if isinstance(arrays, dict):
        return {name: function(a) for name, a in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(function(a) for a in arrays)
    return function(arrays)


def by_name(arrays: Any, what: str = "") -> dict[str, Any]:
    """One array, or each of a tuple or dict, by the name that error messages use for it."""
    if isinstance(arrays, dict):
        return {f"{what}[{name!r}]": a for name, a in arrays.items()}
    if isinstance(arrays, tuple):
        return {f"{what}[{i}]": a for i, a in enumerate(arrays)}
    return {what: arrays}


def arrays_of(given: Mapping[str, Any], array: Callable) -> tuple[dict[str, Any], dict[str, Any]]:
    """(The parts with arrays in place of values, all arrays by name), for inputs, targets, weights.

    `array(values, name, part)` makes one. ValueError if their numbers of samples differ.
    """
    arrays = {
        name: array(values, name, what)
        for what, part in given.items()
        for name, values in by_name(part, what).items()
    }
    if len({len(a) for a in arrays.values()}) > 1:
        have = ", ".join(f"{name} {len(a)}" for name, a in arrays.items())
        raise ValueError(f"arrays of different numbers of samples: {have}")
    found = iter(arrays.values())
    return {what: each_array(lambda a: next(found), part) for what, part in given.items()}, arrays


def not_a_number(arrays: Mapping[str, np.ndarray]) -> str | None:
    """In words: the first NaN or infinity in these arrays; None if there is none."""
    for name, array in arrays.items():
        if (place := not_finite(array)) is not None:
            return f"{name}[{', '.join(map(str, place))}] is {array[place]}"
    return None


@dataclass(frozen=True)
class Data:
    """Samples and their targets: arrays of shape (n, ...), or tuples or dicts of such arrays.

    Attributes:
        targets: () if there are none.
        weights: What each sample's loss is multiplied by, shape (n,); for several targets, a tuple
            or dict as these. None: 1.
    """

    inputs: Any
    targets: Any
    weights: Any = None

    @classmethod
    def of(cls, inputs: Any, targets: Any, weights: Any = None) -> Data:
        """Build data from anything array-like, and check that all numbers of samples agree.

        `targets` may be None for a model that needs none (autoencoders with `add_loss`).
        """
        given = {"inputs": inputs, "targets": targets, "weights": weights}
        listed = {
            what: tuple(a) if isinstance(a, list) and of_arrays(a) else a
            for what, a in given.items()
            if a is not None
        }
        if "inputs" not in listed or not all(map(by_name, listed.values())):
            raise ValueError("inputs and targets must have at least one array each")
        made, _ = arrays_of(
            listed, lambda values, name, what: array_of(values, name, what == "inputs")
        )
        return cls(made["inputs"], made.get("targets", ()), made.get("weights"))

    def __len__(self) -> int:
        return len(next(iter(by_name(self.inputs).values())))

    def take(self, indices: np.ndarray | slice) -> Batch:
        """Return the samples at `indices` as a batch: a view for a slice, else a copy."""

        def taken(a: np.ndarray) -> np.ndarray:
            return a[indices] if isinstance(indices, slice) else a.take(indices, axis=0)

        batch = each_array(taken, self.inputs), each_array(taken, self.targets)
        return batch if self.weights is None else (*batch, each_array(taken, self.weights))

    def order(self, seed: tuple[int, ...] | None, batch_size: int) -> Iterator[np.ndarray]:
        """Yield the sample indices in windows, in an order set by `seed` (None: unshuffled).

        A window holds the samples that are best read together: a whole number of global batches,
        except for the last window. For data in memory one window holds everything.
        """
        n = len(self)
        yield np.arange(n) if seed is None else np.random.default_rng(seed).permutation(n)

    def read(self, windows: Iterable[list[np.ndarray]]) -> Iterator[Batch]:
        """Yield the samples at each array of indices; a window is a list of such arrays."""
        for window in windows:
            for indices in window:
                yield self.take(indices)

    def rows(self, samples: slice) -> Data:
        """Return the samples of a slice as data, without a copy."""
        return type(self)(*self.take(samples))


def of_arrays(values: list) -> bool:
    """True for a list of arrays (several inputs, as in Keras); a list of numbers is one array."""
    return bool(values) and all(isinstance(v, np.ndarray) and v.ndim for v in values)


@dataclass(frozen=True)
class Dataset:
    """Training data (`train`) and data held out for validation (`validation`; None: none).

    Each is a `Data`, `Hdf5Data` or `Stream`.
    """

    name: str  # shown in tables and plots
    train: Data
    validation: Data | None
    classes: int | None = None  # if the targets are class labels 0 ... classes - 1

    def __post_init__(self) -> None:
        for part in ("train", "validation"):
            data = getattr(self, part)
            if isinstance(data, Sized) and len(data) == 0:
                raise ValueError(f"dataset '{self.name}': its {part} part has no samples")
        if not (isinstance(self.train, Sized) and isinstance(self.validation, Sized)):
            return  # the samples of a stream may differ in shape
        kept = each_array(lambda a: a.shape[1:], self.validation.inputs)
        if self.inputs_shape != kept:
            raise ValueError(
                f"dataset '{self.name}': one sample's inputs have shape {self.inputs_shape} for "
                f"training but {kept} for validation; expected the same shape"
            )

    def check_finite(self) -> None:
        """Raise ValueError if data in memory have a NaN or an infinity; it names the first one."""
        for part in ("train", "validation"):
            data = getattr(self, part)
            if not isinstance(data, Data):
                continue  # in files: a loss that is not finite ends the run; streams are checked
            weights = () if data.weights is None else data.weights
            arrays = by_name(data.inputs, "inputs") | by_name(data.targets, "targets")
            if found := not_a_number(arrays | by_name(weights, "weights")):
                raise ValueError(
                    f"data '{self.name}': {part}.{found}; remove such samples or replace the number"
                )

    @property
    def inputs_shape(self) -> Any:
        """Shape of one sample's inputs (a tuple or dict of shapes if there are several inputs)."""
        return each_array(lambda a: a.shape[1:], self.train.inputs)


def share(n: int, rank: int, ranks: int) -> slice:
    """This rank's share of `n` items: contiguous, in rank order, sizes differ by at most one.

    >>> [share(10, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank must be from 0 to {ranks - 1}, got {rank}")
    return slice(n * rank // ranks, n * (rank + 1) // ranks)


def shard(data: Data, rank: int, ranks: int, batch_size: int = 1) -> Data:
    """This rank's contiguous share of `data`, without a copy: whole batches, perhaps none."""
    n = len(data)
    own = share(-(-n // batch_size), rank, ranks)
    return data.rows(slice(min(n, own.start * batch_size), min(n, own.stop * batch_size)))


def varied(data: Any, count: int) -> Batch:
    """At most `count` samples from all of `data`, with targets as different as there are.

    They are the same in each process. Of files and streams they are the first ones.
    """
    if not isinstance(data, Data):
        return data.take(slice(0, count))
    places = np.unique(np.linspace(0, len(data) - 1, 16 * count).astype(int))
    if len(places) > count:
        _, targets, *_ = data.take(places)
        arrays = [a for a in by_name(targets).values() if len(a)]
        seen, turns = Counter(), []  # how many samples before this one have the same target
        for i in range(len(places)):
            kind = tuple(a[i].tobytes() for a in arrays)
            turns.append(seen[kind])
            seen[kind] += 1
        order = np.argsort(turns, kind="stable")
        spread = np.linspace(0, max(count, turns.count(0)) - 1, count).astype(int)
        places = np.sort(places[order[spread]])
    return data.take(places)


def classes(*parts: Data | None) -> int | None:
    """Number of classes if the targets are labels (one column of integers >= 0), else None."""
    targets = [part.targets for part in parts if part is not None]
    for t in targets:
        labels = not isinstance(t, (tuple, dict)) and t.size == len(t) and t.dtype.kind in "iu"
        if not labels or t.min(initial=0) < 0:
            return None
    return 1 + max(int(t.max(initial=0)) for t in targets)
