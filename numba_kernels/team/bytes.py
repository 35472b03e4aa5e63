"""Bytes and text over a team, outside the collectives on vectors."""

import time

import numpy as np
from mpi4py import MPI

TAG = 2


def broadcast_text(team, text: str, root: int | None = None) -> str:
    """Return rank `root`'s `text` on every rank; the default root is the last rank. Collective."""
    root = team.size - 1 if root is None else root
    content = text.encode()
    size = int(team.broadcast(np.array([len(content)]), root)[0])
    words = np.zeros(-(-size // 4), np.int32)  # what collectives carry
    if team.rank == root:
        words.view(np.uint8)[:size] = np.frombuffer(content, np.uint8)
    return team.broadcast(words, root).tobytes()[:size].decode()


def collect(team, content: bytes) -> list[bytes] | None:
    """Return every rank's `content`, in order, on rank 0, and None on the others. Collective."""
    lengths = team.allgather(np.array([len(content)], np.int64))[:, 0]
    if team.rank:
        send(team, np.frombuffer(content, np.uint8), 0)
        return None
    found = [content]
    for rank in range(1, team.size):
        found.append(bytes(receive(team, np.empty(lengths[rank], np.uint8), rank)))
    return found


def send(team, x: np.ndarray, to: int) -> None:
    """Send the bytes of `x` to rank `to`, which calls `receive`."""
    _finish(team, team.comm.Isend([x, MPI.BYTE], to, TAG))


def receive(team, x: np.ndarray, source: int) -> np.ndarray:
    _finish(team, team.comm.Irecv([x, MPI.BYTE], source, TAG))
    return x


def _finish(team, request: MPI.Request) -> None:
    """Wait for `request`: poll for 1 ms, then wait as a team does, with pauses between polls."""
    soon = time.monotonic() + 0.001
    while not request.Test():
        if time.monotonic() > soon:
            team.wait_until(request.Test)
            return
