"""Server: the end of a star that a worker, or a sub-master, has of its master."""

from __future__ import annotations

import numpy as np

from numba_kernels.star import Star
from numba_kernels.trace import span

from ..replica.base import can_swap
from ..training.errors import TrainingError
from .words import Kind, Order


class GivenUp(TrainingError):
    """This worker took so long that its master does without it."""


class Server:
    """What a Rule pushes to and pulls from.

    Args:
        star: This rank is a leaf of it.
        n: Length of the weights; what is behind them in the star's vectors is a model's state.
        replica: Whose state goes along.
        kind: PUSH for a worker, RELAY for a sub-master.
        swaps: The rule looks at neither vector after a push, so that an answer may come where the
            gradient was: the replica's vectors change places with those of the star then, if it can
            do that (`swap`).

    Attributes:
        order: The words of the last answer that said what is to be done next; None: not yet known.
        report: Numbers that go along with the next push (words.py); None: no exchange is due.
    """

    def __init__(self, star: Star, n: int, replica, kind: Kind = Kind.PUSH, swaps: bool = False):
        self.star, self.n, self.replica, self.kind = star, n, replica, kind
        self.swaps = swaps and star.near and can_swap(replica)
        self.has_state = bool(replica.state.size)
        self.order: np.ndarray | None = None
        self.report: list[float] | None = None

    # For rules

    def pull(self, into: np.ndarray | None = None) -> np.ndarray:
        """The master's weights [n], in `into` if given; else valid until the next exchange."""
        with span("pull"):
            self.ask([Kind.PULL], vector=False)
            return self._received(into)

    def push(
        self, vector: np.ndarray, into: np.ndarray | None = None, answer: bool = True
    ) -> np.ndarray | None:
        """Send `vector` [n]; returns what the master answers, in `into` if given.

        `answer=False`: nothing is wanted back; returns None.
        """
        if self.report is None:
            raise RuntimeError("a rule pushed twice, or in a step in which no exchange is due")
        with span("push"):
            _copy(self.star.out[: self.n], vector)
            if self.has_state:
                self.star.out[self.n :] = self.replica.state
            swap = self.swaps and answer and _same(vector, self.star.out)
            swap = swap and into is not None and _same(into, self.star.into)
            self.order = self.ask([self.kind, *self.report], answer=answer, swap=swap)
            self.report = None
            if swap and _same(vector, self.star.into):
                self.replica.swap()
                return self.replica.parameters
            return self._received(into) if answer else None

    # For workers and sub-masters

    def say(self, kind: Kind, numbers=()) -> None:
        """Only words; what to do next is in `order` then."""
        idle = kind == Kind.WAITS  # until others have something for it
        self.order = self.ask([kind, *numbers], vector=False, answer=False, idle=idle)

    def get(self, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
        """(weights, state) that are not the master's present ones; valid until the next exchange"""
        self.ask([kind], vector=False)
        return self.star.into[: self.n], self.star.into[self.n :]

    def ask(self, words, **how) -> np.ndarray:
        """`Star.ask`, of a star whose hub may answer that it does without this rank."""
        answered = self.star.ask(words, **how)
        if answered[0] == Order.GIVEN_UP:
            raise GivenUp("the master has given this worker up, which took too long")
        return answered

    def _received(self, into: np.ndarray | None) -> np.ndarray:
        received = self.star.into[: self.n]
        if into is None:
            return received
        _copy(into, received)
        return into


def _copy(to: np.ndarray, vector: np.ndarray) -> None:
    """to = vector, unless it is that already."""
    if not _same(to, vector):
        to[:] = vector


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.ctypes.data == b.ctypes.data
