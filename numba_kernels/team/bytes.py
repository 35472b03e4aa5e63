"""Objects and bytes over a team, outside the collectives on vectors.

Objects are pickled, so that arrays of any dtype, text and any structure of them go alike. (As with
any pickle, accept only what ranks of the same job have sent.)
"""

import pickle
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

TAG = 2


def pack(objects: Sequence) -> tuple[np.ndarray, list[int]]:
    """Several objects, one after the other, as int64 words; and each one's number of words."""
    blocks = [pickle.dumps(one, pickle.HIGHEST_PROTOCOL) for one in objects]
    lengths = [-(-len(block) // 8) for block in blocks]
    words, at = np.zeros(sum(lengths), np.int64), 0
    for block, length in zip(blocks, lengths, strict=True):
        words[at : at + length].view(np.uint8)[: len(block)] = np.frombuffer(block, np.uint8)
        at += length
    return words, lengths


def unpack(words: np.ndarray) -> Any:
    """The object in these words."""
    return pickle.loads(words)


def broadcast(team, one: Any, root: int = 0) -> Any:
    """Rank `root`'s object, on all ranks of the team. Collective."""
    words = pack([one])[0] if team.rank == root else np.empty(0, np.int64)
    (length,) = team.broadcast(np.array([len(words)]), root)
    words = team.broadcast(words if team.rank == root else np.empty(length, np.int64), root)
    return one if team.rank == root else unpack(words)


def broadcast_text(team, text: str, root: int | None = None) -> str:
    """Return rank `root`'s `text` on every rank; the default root is the last rank. Collective."""
    return broadcast(team, text, team.size - 1 if root is None else root)


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
