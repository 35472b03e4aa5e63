"""Checkpoints of a run with a master: the master writes them alone, while workers continue.

They hold the master's weights and the rule's state, the history, and which shares of the begun
epochs are not done. They do not hold the workers' own state (momentum, weights between two
exchanges): in a resumed run workers begin with the master's weights. Under sub-masters, a share is
done when its update has reached the top master (ledger.py).
"""

from __future__ import annotations

import json
import time

import numpy as np
from mpi4py import MPI

from numba_kernels.team.bytes import broadcast_text
from numba_kernels.team.team import Team

from .format import CheckpointError, Checkpoints


def write(top):
    """Write the state of a Top, between two requests, and return the path."""
    trainer, saving = top.trainer, top.trainer.saving
    numbers, vectors = top.rule.save()
    content, more = saving.content(numbers, 0, top.n)
    sums = {epoch: dict(row) for epoch, row in top.sums.items()}
    for row in sums.values():
        row["seconds"] = row.get("seconds", 0.0) + time.perf_counter() - top.since
    content |= {
        "slices": [top.n],
        "rule": trainer.by,
        "names": list(vectors),
        "begun": top.undone(),
        "sums": [[epoch, row] for epoch, row in sums.items()],
        "unseen": [[one.epoch, one.row] for one in top.validations],
        "staleness": list((trainer.history.staleness + top.staleness).items()),
        "workers": list((trainer.history.workers + top.shares).items()),
    }
    own = {"state": top.mean_state()}
    saving.resumed = True  # from now on, the checkpoints in the folder are ours
    vectors = {"parameters": top.weights} | vectors | more
    return saving.of_master.write(trainer.steps, content, vectors, own)


def alone(saving) -> Checkpoints:
    """The same folder for one rank alone. All ranks call this, before any has failed."""
    checkpoints = saving.checkpoints
    return Checkpoints(Team(MPI.COMM_SELF), checkpoints.folder, checkpoints.keep)


def read(trainer) -> bool:
    """Resume from the newest checkpoint, if there is one. Collective over the trainer's team."""
    saving, team = trainer.saving, trainer.team
    saving.resumed = True
    found = np.zeros(1)
    if team.rank == 0:
        saved = saving.of_master.newest()
        if saved is not None:
            saving.check(saved)
            if saved.values["rule"] != trainer.by:
                raise CheckpointError(
                    f"{saved.path} was written with {saved.values['rule']}, not {trainer.by}"
                )
            n = trainer.replica.parameters.size
            trainer.replica.parameters[:] = saved.vector("parameters", 0, n)
            if trainer.replica.state.size:
                trainer.replica.state = saved.own("state", 0)
            saving.take_up(saved)
            trainer.history.staleness.update(dict(saved.values["staleness"]))
            trainer.history.workers.update(dict(saved.values["workers"]))
            vectors = {name: saved.vector(name, 0, n) for name in saved.values["names"]}
            trainer.resumed = saved.values | {"vectors": vectors}
            found[0] = 1
    if not team.broadcast(found)[0]:
        return False
    spread(trainer)
    return True


def spread(trainer) -> None:
    """Give all ranks rank 0's weights and history. Collective over the trainer's team."""
    team, replica, history = trainer.team, trainer.replica, trainer.history
    team.broadcast(replica.parameters)
    if replica.state.size:
        replica.state = team.broadcast(np.copy(replica.state))
    word = {"epochs": history.epochs, "steps": trainer.steps, "stopped": trainer.stopped}
    word = json.loads(broadcast_text(team, json.dumps(word), root=0))
    history.epochs[:], trainer.steps, trainer.stopped = word.values()
