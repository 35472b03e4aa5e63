"""Count memory traffic: which vectors each numpy operation of a function reads and writes.

A vector that does not fit into the processor's caches comes from memory whenever it is read, and
goes back whenever it is written. Memory transfers whole cache lines, so a vector that is written
without having been read is also fetched before it is overwritten. numpy does one operation at a
time, so in every operation each vector that takes part makes a trip through memory:

    >>> def update(w, g, t):
    ...     np.multiply(g, 0.1, out=t)
    ...     w -= t
    >>> for trip in trips(update, w=np.ones(4), g=np.ones(4), t=np.ones(4)):
    ...     print(trip)
    multiply  reads g  writes t
    subtract  reads w t  writes w
    >>> moved(trips(update, w=np.ones(4), g=np.ones(4), t=np.ones(4)))
    6
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np


class Trip(NamedTuple):
    """One pass over some vectors, which are given by their names."""

    operation: str  # name of the numpy operation, or "copy"
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def fetches(self) -> tuple[str, ...]:
        """Names of the vectors that are written without having been read."""
        return tuple(name for name in self.writes if name not in self.reads)

    def __str__(self) -> str:
        return f"{self.operation}  reads {' '.join(self.reads)}  writes {' '.join(self.writes)}"


def trips(function: Callable, **vectors: np.ndarray) -> list[Trip]:
    """Return the trips that `function(**vectors)` makes, one per elementwise numpy operation.

    Arguments that are not arrays, and numbers in formulas, are not counted: they stay in registers.

    Args:
        function: what to count; it is called once
        vectors: its arguments by name; the function may change the arrays

    Returns:
        The trips, in order. A result without `out=` is a vector of its own: "new 1", "new 2", ...
        ValueError for an operation that is not elementwise (a sum, a matrix product).
    """
    log: list[Trip] = []
    watched = {
        name: _Watched.wrap(x, name, log) if isinstance(x, np.ndarray) and x.ndim else x
        for name, x in vectors.items()
    }
    function(**watched)
    return log


def moved(plan: Iterable[Trip]) -> int:
    """Return how many numbers per element the trips read, fetch and write."""
    return sum(len(trip.reads) + len(trip.fetches) + len(trip.writes) for trip in plan)


class _Watched(np.ndarray):
    """An array that logs the operations on it."""

    name: str = ""
    log: list[Trip] | None = None

    @classmethod
    def wrap(cls, x: np.ndarray, name: str, log: list[Trip]) -> _Watched:
        watched = x.view(cls)
        watched.name, watched.log = name, log
        return watched

    def __array_finalize__(self, source: Any) -> None:
        self.name, self.log = getattr(source, "name", ""), getattr(source, "log", None)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        if method != "__call__" or ufunc.signature is not None:
            raise ValueError(
                f"only elementwise operations are counted, got {ufunc.__name__}.{method}"
            )
        places = None if out is None else tuple(map(_plain, out))
        result = ufunc(*map(_plain, inputs), out=places, **options)
        if out is None:
            made = {w for trip in self.log for w in trip.writes if w.startswith("new ")}
            target = _Watched.wrap(result, f"new {1 + len(made)}", self.log)
        else:
            (target,) = out
        self._note(ufunc.__name__, inputs, target)
        return target

    def __setitem__(self, key, value) -> None:
        if isinstance(value, _Watched) and _same(value, self[key]):
            return  # x[2:5] += 1 assigns what it has already written in place
        super().__setitem__(key, _plain(value))
        self._note("copy", [value], self)

    def _note(self, operation: str, inputs, target) -> None:
        reads = dict.fromkeys(x.name for x in inputs if isinstance(x, _Watched))  # each once
        self.log.append(Trip(operation, tuple(reads), (target.name,)))


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, _Watched) else x


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.__array_interface__["data"] == b.__array_interface__["data"] and a.shape == b.shape
