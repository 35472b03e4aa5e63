"""The master's final message to all ranks of a run: the history, and how training ended."""

from __future__ import annotations

import json

import numpy as np

from numba_kernels.team.bytes import broadcast_text


def word_of(trainer, path=None, gone=()) -> bytes:
    """The final message, as JSON.

    Args:
        trainer: The master's trainer.
        path: The checkpoint, if SIGTERM ended the run.
        gone: Ranks that were lost.
    """
    history = trainer.history
    word = {
        "epochs": history.epochs,
        "staleness": list(history.staleness.items()),
        "workers": list(history.workers.items()),
        "lost": history.lost,
        "gone": list(gone),
        "steps": trainer.steps,
        "stopped": trainer.stopped,
        "ended_with": None if path is None else str(path),
    }
    return json.dumps(word).encode()


def take_from_leader(trainer, team, text: str = "") -> None:
    """Give all ranks of a worker the final weights and message that its first rank got."""
    replica = trainer.replica
    text = broadcast_text(team, text, root=0)
    team.broadcast(replica.parameters)
    if replica.state.size:
        replica.state = team.broadcast(np.copy(replica.state))
    take_word(trainer, text)


def take_word(trainer, text: str) -> None:
    """Apply the master's final message: the history, and how training ended."""
    word, history = json.loads(text), trainer.history
    history.epochs[:] = word["epochs"]
    history.staleness.clear()
    history.staleness.update({int(tau): n for tau, n in word["staleness"]})
    history.workers.clear()
    history.workers.update({int(rank): n for rank, n in word["workers"]})
    history.lost[:] = word["lost"]
    trainer.steps, trainer.stopped = word["steps"], word["stopped"]
    trainer.ended_with, trainer.gone = word["ended_with"], word["gone"]
