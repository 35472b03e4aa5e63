"""Trips through memory: which vectors an operation reads and writes, counted from the code itself.

A vector that does not fit into the processor's caches comes from memory whenever it is read, and
goes back whenever it is written. Memory gives and takes whole cache lines, so what is written
without having been read is fetched all the same before it is overwritten. numpy does one operation
at a time, so every operation is a trip for each vector that takes part:

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
    """One pass over some vectors."""

    operation: str
    reads: tuple[str, ...]  # names of vectors
    writes: tuple[str, ...]

    @property
    def fetches(self) -> tuple[str, ...]:
        """What is written without having been read."""
        return tuple(name for name in self.writes if name not in self.reads)

    def __str__(self) -> str:
        return f"{self.operation}  reads {' '.join(self.reads)}  writes {' '.join(self.writes)}"


def trips(function: Callable, **vectors: np.ndarray) -> list[Trip]:
    """The trips that `function(**vectors)` makes, an elementwise numpy operation each.

    Arguments that are no arrays, and numbers in formulas, are not counted: they stay in a register.
    A result that is given no place by `out=` is a vector too, "new 1" and so on. The vectors are
    changed as the function changes them.

    Raises ValueError for operations other than elementwise ones (a sum, a matrix product).
    """
    log: list[Trip] = []
    watched = {
        name: _Watched.of(x, name, log) if isinstance(x, np.ndarray) and x.ndim else x
        for name, x in vectors.items()
    }
    function(**watched)
    return log


def moved(plan: Iterable[Trip]) -> int:
    """How many numbers go through memory for each element: read, fetched and written."""
    return sum(len(trip.reads) + len(trip.fetches) + len(trip.writes) for trip in plan)


class _Watched(np.ndarray):
    """An array that notes what is done with it."""

    name: str = ""
    log: list[Trip] | None = None

    @classmethod
    def of(cls, x: np.ndarray, name: str, log: list[Trip]) -> _Watched:
        watched = x.view(cls)
        watched.name, watched.log = name, log
        return watched

    def __array_finalize__(self, source: Any) -> None:
        self.name, self.log = getattr(source, "name", ""), getattr(source, "log", None)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        if method != "__call__" or ufunc.signature is not None:
            raise ValueError(f"{ufunc.__name__}.{method}: only elementwise operations are counted")
        places = None if out is None else tuple(map(_plain, out))
        result = ufunc(*map(_plain, inputs), out=places, **options)
        if out is None:
            target = _Watched.of(result, f"new {self._new()}", self.log)
        else:
            (target,) = out
        self._note(ufunc.__name__, inputs, target)
        return target

    def __setitem__(self, key, value) -> None:
        if isinstance(value, _Watched) and _same(value, self[key]):
            return  # x[2:5] += 1 puts back what has been written in place
        super().__setitem__(key, _plain(value))
        self._note("copy", [value], self)

    def _new(self) -> int:
        return 1 + len({w for trip in self.log for w in trip.writes if w.startswith("new ")})

    def _note(self, operation: str, inputs, target) -> None:
        reads = dict.fromkeys(x.name for x in inputs if isinstance(x, _Watched))  # each once
        self.log.append(Trip(operation, tuple(reads), (target.name,)))


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, _Watched) else x


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.__array_interface__["data"] == b.__array_interface__["data"] and a.shape == b.shape
