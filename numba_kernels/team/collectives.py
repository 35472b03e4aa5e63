"""`Collectives`: what a rank may ask of its peers, whoever carries the messages.

A `Team` of real ranks is one. A virtual team, whose ranks lie in one process and share a simulated
clock, is another (tutorial_dl/simulate/ranks.py). `Team` says what the calls do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

import numpy as np

from ..jit import compiling


class Clock:
    """Real time without what this thread compiles kernels. A simulated clock derives from it."""

    def now(self) -> float:
        """Seconds since a fixed but arbitrary moment."""
        return time.perf_counter() - compiling.spent.seconds


@runtime_checkable
class Collectives(Protocol):
    """The ranks of a team, as one of them sees it. All its ranks make the same calls, in order.

    Attributes:
        rank, size: This rank's number, and the number of ranks.
        clock: By which this rank measures time.
    """

    rank: int
    size: int
    clock: Clock

    def allreduce(self, x: np.ndarray, op: str = "sum", algorithm: str = "auto") -> np.ndarray: ...

    def reduce_scatter(self, x: np.ndarray, op: str = "sum") -> np.ndarray: ...

    def allgather(self, x: np.ndarray) -> np.ndarray | list[np.ndarray]: ...

    def alltoall(self, x: np.ndarray) -> np.ndarray: ...

    def broadcast(self, x: np.ndarray, root: int = 0) -> np.ndarray: ...

    def scatter(
        self, x: np.ndarray | None, out: np.ndarray, lengths: Sequence[int], root: int = 0
    ) -> np.ndarray: ...

    def barrier(self) -> None: ...

    def split(self, color: int, key: int = 0) -> Self: ...

    def empty(self, n: int, dtype: type = np.float32, common: bool = False) -> np.ndarray: ...

    def slice_of(self, n: int, rank: int | None = None) -> tuple[int, int]: ...
