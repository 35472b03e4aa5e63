"""Text over a team: what travels is a vector of numbers."""

from __future__ import annotations

import numpy as np


def broadcast_text(team, text: str, root: int | None = None) -> str:
    """Rank `root`'s `text` (default: the last one's) on every rank.

    It travels as a vector of float32: one code a letter.
    """
    root = team.size - 1 if root is None else root
    codes = np.frombuffer(text.encode(), np.uint8).astype(np.float32)
    length = team.broadcast(np.array([codes.size], np.float64), root)
    if team.rank != root:
        codes = np.empty(int(length[0]), np.float32)
    return team.broadcast(codes, root).astype(np.uint8).tobytes().decode()
