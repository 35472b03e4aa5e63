"""`MasterSaving`: checkpoints that a master writes alone, while workers continue.

They hold the master's weights and the rule's state, the history, and what is left of the begun
epochs. They do not hold the workers' own state (momentum, weights between two
exchanges): in a resumed run workers begin with the master's weights. Under sub-masters, a batch is
done when its update has reached the top master (hierarchical_master.py).
"""

import numpy as np
from mpi4py import MPI

from numba_kernels.team.team import Team

from ..replica.base import assign
from .contents import Saving, of_player
from .format import CheckpointError, Checkpoints


class MasterSaving(Saving):
    """Writes and reads the checkpoints of a run with a master; see `Saving`.

    All ranks construct it, before any has failed. `identity` is the rule and its options, which a
    resumed run must have, too.
    """

    def __init__(self, run, folder, every: int | None, keep: int, identity: str):
        super().__init__(run, folder, every, keep)
        self.identity = identity
        self.alone = Checkpoints(Team(MPI.COMM_SELF), folder, keep)

    def write(self, top):
        """On the master alone, between two requests: write the state of a TopMaster."""
        run = self.run
        numbers, vectors = top.rule.save()
        content, more = self.content(lambda vector: vector)
        sums = {epoch: dict(row) for epoch, row in top.sums.items()}
        if sums:  # two epochs may be open; the time since the last one's end is the older one's
            row = sums[min(sums)]
            row["seconds"] = row.get("seconds", 0.0) + run.clock.now() - top.since
        content |= of_player(run.player, numbers) | {
            "slices": [top.n],
            "rule": self.identity,
            "names": list(vectors),
            "begun": top.tasks.save(),
            "sums": list(sums.items()),
            "unseen": [[one.epoch, one.row] for one in top.validations],
            "staleness": list((run.history.staleness + top.staleness).items()),
            "workers": list((run.history.workers + top.shares).items()),
        }
        own = {"state": top.mean_state()}
        self.resumed = True  # from now on, the checkpoints in the folder are ours
        vectors = {"parameters": top.weights} | vectors | more
        return self.alone.write(run.steps, content, vectors, own)

    def read(self) -> tuple[bool, dict | None]:
        """On rank 0, resume from the newest checkpoint. Collective.

        Returns whether there is one; and on rank 0 its values for the master to resume with, the
        rule's vectors under "vectors".
        """
        run, values = self.run, None
        self.resumed = True
        if run.team.rank == 0 and (saved := self.alone.newest()) is not None:
            self.check(saved)
            if saved.values["rule"] != self.identity:
                raise CheckpointError(
                    f"{saved.path} was written with {saved.values['rule']}, not {self.identity}"
                )
            n = run.replica.parameters.size
            assign(run.replica, saved.vector("parameters", 0, n), saved.own("state", 0))
            self.take_up(saved)
            run.history.staleness.update(dict(saved.values["staleness"]))
            run.history.workers.update(dict(saved.values["workers"]))
            vectors = {name: saved.vector(name, 0, n) for name in saved.values["names"]}
            samples = len(run.dataset.train)
            begun = [_left(each, run.batch_size, samples) for each in saved.values["begun"]]
            values = saved.values | {"vectors": vectors, "begun": begun}
        found = run.team.broadcast(np.array([float(values is not None)]))[0]
        return bool(found), values


def _left(entry: dict, size: int, samples: int) -> dict:
    """What is left of an epoch, as `Tasks.save` has it, also of an earlier format.

    That had `parts` columns of positions, and at each position a batch for all of them, or the
    position of the next batch and shares [low, high) / parts of earlier ones.
    """
    if "order" in entry:
        return entry
    if "parts" in entry:
        size, parts = size * entry["parts"], entry["parts"]
        pieces = [(at, q, q + 1, parts) for q, *left in entry["left"] for at in left]
        rest = []
    else:
        pieces, rest = entry["pieces"], [(min(entry["position"] * size, samples), samples)]
    places = []
    for at, low, high, parts in pieces:
        start = at * size
        n = min(start + size, samples) - start
        places.append((start + n * low // parts, start + n * high // parts))
    return {"epoch": entry["epoch"], "order": size, "left": [*places, *rest]}
