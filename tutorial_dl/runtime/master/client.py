"""`Client`: the end of a star by which a worker or sub-master exchanges with its master."""

import numpy as np

from numba_kernels.errors import PeerError, numbered
from numba_kernels.spans import span
from numba_kernels.star.star import Star

from ..errors import TrainingError
from .messages import Answer, Kind, Order, Report, flat


class GivenUp(TrainingError):
    """The master has given this worker up, because it took too long."""


class Client:
    """The master as seen by a Rule, which pushes to it and pulls from it over a star.

    The star's vectors are the weights, then the state of `replica`. `swaps`: the rule uses neither
    vector after a push, so the answer may replace the gradient; the replica then exchanges its
    vectors with the star's, if it can (`swap`). `ranks` are those of the star in the run.
    """

    def __init__(self, star: Star, ranks: list[int], replica, swaps: bool = False):
        self.ranks = ranks
        self.star, self.n, self.replica = star, replica.parameters.size, replica
        self.swaps = swaps and star.near and replica.traits.swaps
        self.has_state = bool(replica.state.size)
        self.last: Answer | None = None  # the last one that had an order; None: not yet known
        self.report: Report | None = None  # to send with the next push; None: no exchange is due

    # For rules

    def pull(self, into: np.ndarray | None = None) -> np.ndarray:
        """Get the master's weights (n,), in `into` if given; else valid until the next exchange."""
        with span("pull"):
            self.ask(Kind.PULL, vector=False)
            return self._received(into)

    def push(
        self, vector: np.ndarray, into: np.ndarray | None = None, answer: bool = True
    ) -> np.ndarray | None:
        """Send `vector` (n,) and return the master's answer, in `into` if given.

        With `answer=False`, no vector comes back and it returns None.
        """
        if self.report is None:
            raise RuntimeError("the rule pushed twice, or in a step in which no exchange is due")
        with span("push"):
            _copy(self.star.out[: self.n], vector)
            if self.has_state:
                self.star.out[self.n :] = self.replica.state
            swap = self.swaps and answer and _same(vector, self.star.out)
            swap = swap and into is not None and _same(into, self.star.into)
            self.last = self.ask(Kind.PUSH, self.report, answer=answer, swap=swap)
            self.report = None
            if swap and _same(vector, self.star.into):
                self.replica.swap()
                return self.replica.parameters
            return self._received(into) if answer else None

    # For workers and sub-masters

    def say(self, kind: Kind, record: tuple = ()) -> None:
        """Send a request without a vector; the answer is in `last` afterwards."""
        idle = kind == Kind.WAITS  # the answer may take long
        self.last = self.ask(kind, record, vector=False, answer=False, idle=idle)

    def get(self, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
        """Get (weights, state) of a SNAPSHOT or FINAL; valid until the next exchange."""
        self.ask(kind, vector=False)
        return self.star.into[: self.n], self.star.into[self.n :]

    def final_message(self) -> bytes:
        with numbered(self.ranks):
            return self.star.receive_bytes()

    def ask(self, kind: Kind, record: tuple = (), **how) -> Answer:
        """As `Star.ask`; raises GivenUp if the master has given this rank up."""
        try:  # `numbered` would take microseconds in each exchange
            words = self.star.ask([kind, *flat(record)], **how)
        except PeerError as error:
            raise error.renumbered(dict(enumerate(self.ranks))) from None
        answer = Answer.of_words(words.tolist())
        if answer.order == Order.GIVEN_UP:
            raise GivenUp("the master has given this worker up because it took too long")
        return answer

    def _received(self, into: np.ndarray | None) -> np.ndarray:
        received = self.star.into[: self.n]
        if into is None:
            return received
        _copy(into, received)
        return into


def _copy(to: np.ndarray, vector: np.ndarray) -> None:
    """Copy `vector` into `to`, unless they share memory already."""
    if not _same(to, vector):
        to[:] = vector


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.ctypes.data == b.ctypes.data
