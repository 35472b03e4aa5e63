"""`rehearse`: run a function meant for several ranks in this process, with one thread per rank.

    def function(comm, x): ...        # comm.rank, comm.size, comm.Sendrecv as in mpi4py
    runs = rehearse(function, vectors)        # one vector per rank
    runs[2].states[3]                 # the x of rank 2 after its third exchange

Every rank's vector is recorded after every exchange, so that a check can say when it went wrong.
Every wait has a time limit, and an error on one rank ends the waits of the others.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from threading import Event, Thread

import numpy as np


class Watch:
    """A record of what one rank did: the states of its vector, and its messages.

    Attributes:
        states: copies of x, one before each exchange and one at the end; so states[k] is x after k
            exchanges, and what the function did until the next one
        sent: (target rank, how many numbers) of each message
        error: the exception that the function raised, or None
    """

    def __init__(self, x: np.ndarray):
        self.x = x
        self.states: list[np.ndarray] = []
        self.sent: list[tuple[int, int]] = []
        self.error: BaseException | None = None

    def note(self, sendbuf: np.ndarray, dest: int) -> None:
        """Record the state and the message; to be called before every exchange."""
        self.states.append(self.x.copy())
        self.sent.append((dest, np.size(sendbuf)))

    def end(self) -> None:
        """Record the last state; to be called when the function has returned."""
        self.states.append(self.x.copy())


class GaveUp(Exception):
    """Another rank failed, so the message that this rank waits for will not come."""


def rehearse(
    function: Callable[[RehearsalRank, np.ndarray], object],
    vectors: Sequence[np.ndarray],
    seconds: float = 2.0,
) -> list[Watch]:
    """Call `function(comm, vectors[rank])` on as many ranks as there are vectors, all at once.

    Args:
        function: what each rank does; its result is ignored
        vectors: float64, one per rank; the function may change them
        seconds: how long a rank waits for a message before it raises TimeoutError

    Returns:
        One Watch per rank; its `error` holds what the function raised there.
    """
    size, failed = len(vectors), Event()
    doors = {(a, b): queue.Queue() for a in range(size) for b in range(size)}
    watches = [Watch(x) for x in vectors]

    def run(rank: int) -> None:
        watch = watches[rank]
        try:
            function(RehearsalRank(rank, size, doors, watch, failed, seconds), watch.x)
            watch.end()
        except BaseException as error:
            watch.error = error
            failed.set()

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return watches


class RehearsalRank:
    """A communicator as one rank sees it: `rank`, `size` and `Sendrecv` of small numpy arrays."""

    def __init__(self, rank, size, doors, watch, failed, seconds):
        self.rank, self.size = rank, size
        self._doors, self._watch, self._failed, self._seconds = doors, watch, failed, seconds

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Sendrecv(self, sendbuf: np.ndarray, dest: int, *, recvbuf: np.ndarray, source: int) -> None:
        for what, other in (("dest", dest), ("source", source)):
            if not 0 <= other < self.size:
                raise ValueError(f"{what} must be a rank from 0 to {self.size - 1}, got {other}")
        self._watch.note(sendbuf, dest)
        self._doors[self.rank, dest].put(np.array(sendbuf))
        message = self._wait(source)
        if message.size > recvbuf.size:  # mpi4py: MPI_ERR_TRUNCATE
            raise ValueError(
                f"rank {source} sent {message.size} numbers to rank {self.rank}, whose recvbuf has "
                f"room for {recvbuf.size}"
            )
        recvbuf.reshape(-1)[: message.size] = message.reshape(-1)

    def _wait(self, source: int) -> np.ndarray:
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                return self._doors[source, self.rank].get(timeout=0.02)
            except queue.Empty:
                if self._failed.is_set():
                    raise GaveUp(f"rank {self.rank} waited for rank {source}") from None
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"rank {self.rank} waited {self._seconds:g} s to receive from rank {source}"
                    ) from None
