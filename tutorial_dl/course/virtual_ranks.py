"""Ranks for exercises: learners' functions run here, wrong as they may be, and nothing hangs.

    rehearse(function, vectors)     virtual ranks in this process, watched step by step
    Patient(MPI.COMM_WORLD)         the ranks of an engine cell, with a limit on every wait
    patient_team()                  the same for a Team, which counts its allreduces

A blocking MPI call cannot be interrupted: two ranks that wait for each other stay there until they
are killed. Here every wait gives up after a time:

    comm = Patient(MPI.COMM_WORLD, seconds=2)
    comm.Recv(x, source=1)              # TimeoutError: rank 0 waited 2 s to receive from rank 1
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from tutorial_dl.simulate.ranks import PATIENCE, VirtualTeam, on_virtual_ranks

DATA, RECEIPT = 1, 2  # tags
SECONDS = 5.0  # for which a rank of `patient_team` waits for the others before it gives up


class _Rank:
    """The calls of mpi4py that tell a rank where it is, and Sendrecv; it records what was done.

    Attributes:
        watched: this rank's vector, if its states are recorded
        states: the vector before each Sendrecv and at the end: states[k] is that after k exchanges,
            and what the function did until the next one
        sent: (target rank, how many numbers) of each message
        error: what the function raised
    """

    has: str  # what there is of mpi4py's communicators, in words

    def __init__(self, place, watched: np.ndarray | None = None):
        self.rank, self.size, self.watched = place.rank, place.size, watched
        self.states: list[np.ndarray] = []
        self.sent: list[tuple[int, int]] = []
        self.error: BaseException | None = None

    def note(self) -> None:
        """Record the vector's state; also to be called when the function has returned."""
        if self.watched is not None:
            self.states.append(self.watched.copy())

    def __getattr__(self, name: str):
        raise AttributeError(f"comm has no {name!r} here; it has {self.has}")

    def _must_be_there(self, **ranks: int) -> None:
        for what, other in ranks.items():
            if not 0 <= other < self.size:
                raise ValueError(f"{what} must be a rank from 0 to {self.size - 1}, got {other}")

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Sendrecv(
        self, sendbuf: np.ndarray, dest: int, sendtag: int = 0,
        recvbuf: np.ndarray | None = None, source: int | None = None, recvtag: int = 0,
    ) -> None:  # fmt: skip
        _must_say_where_from(recvbuf, source)
        self._must_be_there(dest=dest, source=source)
        self.note()
        receipt = self._post(sendbuf, dest)
        self._take(recvbuf, source)
        self._wait(receipt, f"for rank {dest} to receive")

    def _wait(self, request: object, what: str, room: int = 0) -> None: ...


def rehearse(
    function: Callable[[RehearsalRank, np.ndarray], object],
    vectors: Sequence[np.ndarray],
) -> list[RehearsalRank]:
    """Call `function(comm, vectors[rank])` on as many virtual ranks as there are vectors.

    Every rank's vector is recorded after every exchange, so that a check can say when it went
    wrong. Ranks that wait in vain get the errors of `on_virtual_ranks`. Returns the ranks.
    """
    ranks: dict[int, RehearsalRank] = {}

    def program(team: VirtualTeam) -> None:
        comm = ranks[team.rank] = RehearsalRank(team, vectors[team.rank])
        function(comm, comm.watched)
        comm.note()

    for rank, ended in enumerate(on_virtual_ranks(program, len(vectors))):
        ranks[rank].error = ended.error
    return [ranks[rank] for rank in range(len(vectors))]


class RehearsalRank(_Rank):
    """A communicator as one rank sees it: `rank`, `size` and `Sendrecv` of small numpy arrays."""

    has = "rank, size and Sendrecv"

    def __init__(self, team: VirtualTeam, watched: np.ndarray):
        super().__init__(team, watched)
        self.team = team

    def _post(self, buf: np.ndarray, dest: int) -> None:
        self.sent.append((dest, np.size(buf)))
        self.team.send(buf, dest)

    def _take(self, buf: np.ndarray, source: int) -> None:
        message = self.team.receive(source)
        if message.size > buf.size:  # mpi4py: MPI_ERR_TRUNCATE
            raise ValueError(
                f"rank {source} sent {message.size} numbers to rank {self.rank}, whose recvbuf has "
                f"room for {buf.size}"
            )
        buf.reshape(-1)[: message.size] = message.reshape(-1)


class Patient(_Rank):
    """Send, Recv and Sendrecv of small numpy arrays as in mpi4py, with a limit on every wait.

    Tags are taken, as in mpi4py, but mean nothing: messages of a pair of ranks keep their order.
    A Send returns when the message has been received, as MPI's does for large messages. (For small
    ones MPI's may return at once, so that a wrong order goes unnoticed until the messages grow.)

    Args:
        comm: an mpi4py communicator; all its ranks must create the Patient together
        seconds: how long a call waits before it raises TimeoutError
        watched: the vector whose states are recorded, if given
    """

    has = "rank, size, Send, Recv and Sendrecv"

    def __init__(self, comm, seconds: float = PATIENCE, watched: np.ndarray | None = None):
        super().__init__(comm, watched)
        self.comm = comm.Dup()  # so that an abandoned message cannot be taken for a later one
        self.seconds = seconds

    def Send(self, buf: np.ndarray, dest: int, tag: int = 0) -> None:
        self._must_be_there(dest=dest)
        self._wait(self._post(buf, dest), f"for rank {dest} to receive")

    def Recv(self, buf: np.ndarray, source: int | None = None, tag: int = 0) -> None:
        _must_say_where_from(buf, source)
        self._must_be_there(source=source)
        self._take(buf, source)

    def _take(self, buf: np.ndarray, source: int) -> None:
        request = self.comm.Irecv(buf, source, DATA)
        self._wait(request, f"to receive from rank {source}", buf.size)
        self.comm.Isend(np.empty(0), source, RECEIPT).Wait()

    def _post(self, buf: np.ndarray, dest: int):
        buf = np.ascontiguousarray(buf)
        if buf.nbytes > 1024:  # above some size MPI itself waits for the receiver
            raise ValueError(f"a message must be at most 1024 bytes here, got {buf.nbytes} bytes")
        self.sent.append((dest, buf.size))
        self.comm.Isend(buf, dest, DATA).Wait()
        return self.comm.Irecv(np.empty(0), dest, RECEIPT)

    def _wait(self, request, what: str, room: int = 0) -> None:
        """Wait for `request`; `room`: how many numbers the message that it receives may have."""
        from mpi4py.MPI import ERR_TRUNCATE
        from mpi4py.MPI import Exception as MPIError

        def done() -> bool:
            try:
                return request.Test()
            except MPIError as error:
                if error.Get_error_class() != ERR_TRUNCATE:
                    raise
            raise ValueError(f"the message has more numbers than recvbuf has room for, {room}")

        deadline = time.monotonic() + self.seconds
        while not done():
            if time.monotonic() > deadline:
                request.Cancel()
                request.Wait()
                raise TimeoutError(f"rank {self.rank} waited {self.seconds:g} s {what}")
            time.sleep(0)  # ranks may outnumber cores: let the others run


def _must_say_where_from(recvbuf: np.ndarray | None, source: int | None) -> None:
    """Refuse to receive from any rank, which mpi4py allows, or into nothing."""
    if recvbuf is None:
        raise ValueError("Sendrecv needs recvbuf=..., an array for what comes in")
    if not isinstance(recvbuf, np.ndarray):
        raise TypeError(f"what comes in needs a numpy array, got {recvbuf!r}")
    if source is None:
        raise ValueError("say from which rank to receive: source=...")


def patient_team():
    """Return a Team of all ranks that counts its allreduces in `calls` and limits every wait."""
    from mpi4py import MPI

    from tutorial_dl import Team

    class PatientTeam(Team):
        calls = 0

        def allreduce(self, *arguments, **options):
            self.calls += 1
            return super().allreduce(*arguments, **options)

        def recover(self, seconds: float = SECONDS) -> None:
            super().recover(min(seconds, SECONDS))

    PatientTeam.__name__ = PatientTeam.__qualname__ = "Team"  # in messages to learners
    return PatientTeam(MPI.COMM_WORLD, deadline=SECONDS)
