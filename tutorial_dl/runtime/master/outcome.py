"""The master's final message to all ranks of a run: the history, and how training ended."""

from __future__ import annotations

import json

import numpy as np

from numba_kernels.team.bytes import broadcast_text


def word_of(run, path=None, gone=()) -> bytes:
    """The final message, as JSON.

    Args:
        run: The master's state of the run.
        path: The checkpoint, if SIGTERM ended the run.
        gone: Ranks that were lost.
    """
    history = run.history
    word = {
        "epochs": history.epochs,
        "staleness": list(history.staleness.items()),
        "workers": list(history.workers.items()),
        "lost": history.lost,
        "gone": list(gone),
        "steps": run.steps,
        "stopped": run.stopped,
        "ended_with": None if path is None else str(path),
    }
    return json.dumps(word).encode()


def take_from_leader(run, team, text: str = "") -> str | None:
    """Give all ranks of a worker the final weights and message that its first rank got."""
    replica = run.replica
    text = broadcast_text(team, text, root=0)
    team.broadcast(replica.parameters)
    if replica.state.size:
        replica.state = team.broadcast(np.copy(replica.state))
    return take_word(run, text)


def take_word(run, text: str) -> str | None:
    """Apply the master's final message: the history, and how training ended.

    Returns:
        The checkpoint's path, if SIGTERM ended the run.
    """
    word, history = json.loads(text), run.history
    history.epochs[:] = word["epochs"]
    history.staleness.clear()
    history.staleness.update({int(tau): n for tau, n in word["staleness"]})
    history.workers.clear()
    history.workers.update({int(rank): n for rank, n in word["workers"]})
    history.lost[:] = word["lost"]
    run.steps, run.stopped, run.lost_ranks = word["steps"], word["stopped"], word["gone"]
    return word["ended_with"]
