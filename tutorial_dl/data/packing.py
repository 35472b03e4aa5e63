"""Objects as blocks of memory: what one rank sends to others.

They are pickled, so that arrays of any dtype, text and any structure of them go alike. (As with any
pickle, accept only what ranks of the same job have sent.)
"""

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np


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
