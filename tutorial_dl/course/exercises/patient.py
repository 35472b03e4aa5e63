"""`Patient`: a communicator with a time limit, so that a deadlock raises an error and never hangs.

A blocking MPI call cannot be interrupted: two ranks that wait for each other stay there until they
are killed. Here every wait polls for the message and gives up after a time:

    comm = Patient(MPI.COMM_WORLD, seconds=2)
    comm.Recv(x, source=1)              # TimeoutError: rank 0 waited 2 s to receive from rank 1

A Send returns when the message has been received, as MPI's does for large messages. (For small
ones MPI's may return at once, so that a wrong order goes unnoticed until the messages grow.)
"""

from __future__ import annotations

import time

import numpy as np

DATA, RECEIPT = 1, 2  # tags


class Patient:
    """Send, Recv and Sendrecv of small numpy arrays as in mpi4py, with a limit on every wait.

    Args:
        comm: an mpi4py communicator; all its ranks must create the Patient together. (It is
            duplicated, so that an abandoned message cannot be taken for a later one.)
        seconds: how long a call waits before it raises TimeoutError

    Attributes:
        sent: the rank that each message was sent to, in order
    """

    def __init__(self, comm, seconds: float = 2.0):
        self.comm, self.seconds = comm.Dup(), seconds
        self.rank, self.size = comm.rank, comm.size
        self.sent: list[int] = []

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Send(self, buf: np.ndarray, dest: int) -> None:
        self._wait_for_receipt(dest, self._post(buf, dest))

    def Recv(self, buf: np.ndarray, source: int) -> None:
        request = self.comm.Irecv(buf, source, DATA)
        self._wait(request, f"to receive from rank {source}")
        self.comm.Isend(np.empty(0), source, RECEIPT).Wait()

    def Sendrecv(self, sendbuf: np.ndarray, dest: int, *, recvbuf: np.ndarray, source: int) -> None:
        receipt = self._post(sendbuf, dest)
        self.Recv(recvbuf, source)
        self._wait_for_receipt(dest, receipt)

    def _post(self, buf: np.ndarray, dest: int):
        buf = np.ascontiguousarray(buf)
        if buf.nbytes > 1024:  # above some size MPI itself waits for the receiver
            raise ValueError(f"a message must be at most 1024 bytes here, got {buf.nbytes} bytes")
        self.sent.append(dest)
        self.comm.Isend(buf, dest, DATA).Wait()
        return self.comm.Irecv(np.empty(0), dest, RECEIPT)

    def _wait_for_receipt(self, dest: int, receipt) -> None:
        self._wait(receipt, f"for rank {dest} to receive")

    def _wait(self, request, what: str) -> None:
        deadline = time.monotonic() + self.seconds
        while not request.Test():
            if time.monotonic() > deadline:
                request.Cancel()
                request.Wait()
                raise TimeoutError(f"rank {self.rank} waited {self.seconds:g} s {what}")
            time.sleep(0)  # ranks may outnumber cores: let the others run
