"""`Saving`: the contents of a Trainer's checkpoint, when it is written, and how training resumes.

A checkpoint holds everything that the rest of a run depends on: weights and the optimizer's state
(in slices), moving statistics and random state of each rank, the position in the epoch, the
history, and the state of callbacks. So a run that was killed and resumed on equally many ranks ends
with the same bits as an uninterrupted one; on another number of ranks it sees the same samples in
the same order.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np

from numba_kernels.team.bytes import broadcast_text

from ..replica import random_state
from ..replica.consistency import check_same_weights
from .format import CheckpointError, Checkpoints


class Saving:
    """Writes and reads a trainer's checkpoints.

    Args:
        trainer: The trainer.
        folder: The folder of the checkpoints.
        every: Steps between two checkpoints; None: at the end of each epoch only.
        keep: Number of checkpoints to keep.
    """

    def __init__(self, trainer, folder, every: int | None, keep: int):
        if every is not None and every < 1:
            raise ValueError(f"checkpoint_every must be at least 1 step, got {every}")
        self.trainer, self.every = trainer, every
        self.checkpoints = Checkpoints(trainer.team, folder, keep)
        self.resumed = False

    def check_folder(self) -> None:
        """Raise ValueError on all ranks if the folder has another run's checkpoints. Collective."""
        if self.resumed:
            return
        team = self.trainer.team
        team.ready()
        if team.broadcast(np.array([len(self.checkpoints.steps())]))[0]:
            raise ValueError(
                f"{self.checkpoints.folder} already holds checkpoints: resume from them, or choose "
                "another folder"
            )

    def after_step(self) -> None:
        t = self.trainer
        before = t.steps - t.strategy.updates_a_step
        due = self.every is not None and t.steps // self.every > before // self.every
        if due and not t.epoch_is_complete:  # else the end of the epoch writes one
            self.write()

    def write(self):
        """Write a checkpoint now; collective.

        Returns:
            Its path.

        Raises:
            DriftError: If the ranks' weights differ.
        """
        t = self.trainer
        t.strategy.settle()
        check_same_weights(t.team, t.replica)  # slices must come from equal models
        values, vectors, own = t.strategy.save()
        first, last = t.team.slice_of(t.replica.parameters.size)
        content, more = self.content(values, first, last)
        bounds = [t.team.slice_of(t.replica.parameters.size, r) for r in range(t.team.size)]
        content["slices"] = [b - a for a, b in bounds]
        self.resumed = True  # from now on, the checkpoints in the folder are ours
        own |= random_state.save(t.replica)
        return self.checkpoints.write(t.steps, content, vectors | more, own)

    def content(self, of_strategy: dict, first: int, last: int) -> tuple[dict, dict]:
        """(values, vectors) besides the strategy's vectors; elements [first, last) of each."""
        t, vectors = self.trainer, {}
        remembered = []
        for number, callback in enumerate(t.callbacks):
            of_it, its_vectors = callback.save()
            remembered.append([type(callback).__name__, of_it, list(its_vectors)])
            for name, vector in its_vectors.items():
                vectors[f"callback_{number}:{name}"] = vector[first:last]
        return {
            "settings": t.settings(),
            "model": layers(t.replica),
            "optimizer": str(rule(t.optimizer)),
            "rate": rate(t),
            "compression": str(getattr(t.strategy, "compression", None)),
            "sizes": sizes(t.replica),
            "place": t.place(),
            "history": t.history.epochs,
            "stopped": t.stopped if t.at_epoch_begin else None,
            "reasons": [repr(callback) for callback in t.callbacks],
            "by": type(t.strategy).__name__,
            "strategy": of_strategy,
            "callbacks": remembered,
        }, vectors

    def read(self) -> bool:
        """Resume from the newest checkpoint, if there is one; collective.

        Raises:
            CheckpointError: If it is from another model or other settings.
        """
        t, saved = self.trainer, self.checkpoints.newest()
        self.resumed = True
        if saved is None:
            return False
        self.check(saved)
        t.strategy.restore(saved)
        random_state.restore(t.replica, saved, t.team.rank)
        self.take_up(saved)
        return True

    def take_up(self, saved) -> None:
        """Restore everything except the strategy's state and each rank's own."""
        t = self.trainer
        t.history.epochs[:] = saved.values["history"]
        # With other callbacks, a run that was stopped may continue.
        same = saved.values["reasons"] == [repr(callback) for callback in t.callbacks]
        t.stopped = saved.values["stopped"] if same else None
        t.go_to(saved.values["place"])
        if t.schedule is None:  # else the next step sets it
            t.strategy.set_rate(t.optimizer.learning_rate, t.correct_momentum)
        if saved.values["rate"] != rate(t) and t.team.rank == 0:
            was = saved.values["rate"]
            print(f"note: the learning rate was {was} and is now {rate(t)}", file=sys.stderr)
        n = t.replica.parameters.size
        remembered = list(enumerate(saved.values["callbacks"]))
        for callback in t.callbacks:  # a new callback keeps its initial state
            own = [it for it in remembered if it[1][0] == type(callback).__name__]
            if own:
                remembered.remove(own[0])
                number, (_, values, names) = own[0]
                keys = {name: f"callback_{number}:{name}" for name in names}
                callback.restore(values, {name: saved.vector(k, 0, n) for name, k in keys.items()})

    def check(self, saved) -> None:
        t, path = self.trainer, saved.path
        mine, theirs = layers(t.replica), saved.values["model"]
        for ours, other in zip(mine["layers"], theirs["layers"], strict=False):
            # Don't compare names, because Keras numbers the layers of a process.
            if ours[1:] != other[1:]:
                raise CheckpointError(
                    f"{path} is from another model: its layer {other[0]!r} has shape {other[2]}, "
                    f"here {ours[0]!r} has shape {ours[2]}"
                )
        if len(mine["layers"]) != len(theirs["layers"]) or mine["dtype"] != theirs["dtype"]:
            raise CheckpointError(
                f"{path} is from another model: {len(theirs['layers'])} layers of "
                f"{theirs['dtype']}, here {len(mine['layers'])} of {mine['dtype']}"
            )
        pairs = {
            "strategy": (saved.values.get("by"), type(t.strategy).__name__),
            "the optimizer": (saved.values["optimizer"], str(rule(t.optimizer))),
            "compression": (
                saved.values["compression"],
                str(getattr(t.strategy, "compression", None)),
            ),
            "numbers beside the weights": (saved.values["sizes"], sizes(t.replica)),
        }
        for name, value in t.settings().items():
            pairs[name] = (saved.values["settings"].get(name), value)
        for name, (other, ours) in pairs.items():
            if other != ours:
                raise CheckpointError(f"{path} was written with {name} {other}, not {ours}")


def rule(optimizer):
    """The optimizer without its learning rate, which may change."""
    return replace(optimizer, learning_rate=0.0)


def rate(trainer) -> str:
    return str(trainer.schedule or f"{trainer.optimizer.learning_rate:g}")


def sizes(replica) -> list[int]:
    """Numbers of moving statistics and seeds of a model, which reveal layers without weights."""
    seeds = replica.random
    return [replica.state.size, 0 if seeds is None else seeds.size]


def agree_on_callbacks(team, callbacks) -> None:
    """After a failure, give all ranks the state of the last rank's callbacks. Collective.

    A callback that failed may have seen an epoch on some ranks only.
    """
    root = team.size - 1
    for callback in callbacks:
        values, vectors = callback.save()
        named = [[name, vector.size, str(vector.dtype)] for name, vector in vectors.items()]
        values, named = json.loads(broadcast_text(team, json.dumps([values, named])))
        found = {}
        for name, size, dtype in named:
            mine = vectors[name].copy() if team.rank == root else np.empty(size, dtype)
            found[name] = team.broadcast(mine, root)
        callback.restore(values, found)


def layers(replica) -> dict:
    return {
        "dtype": str(replica.parameters.dtype),
        "layers": [[s.name, s.offset, list(s.shape)] for s in replica.segments],
    }


def tell_resumed(trainer, found: bool, epochs: int) -> None:
    """Print one line to stderr that says where training resumes, up to `epochs` in all."""
    if trainer.team.rank == 0:
        done = len(trainer.history.epochs)
        where = f"going on from step {trainer.steps}, epoch {done + 1}"
        if not found:
            where = "no checkpoint yet: training from the beginning"
        elif trainer.stopped is not None:
            where = f"the run was stopped before: {trainer.stopped}; nothing is left to train"
        elif done >= epochs:
            where = f"{done} epochs are done; nothing is left to train of --epochs {epochs}"
        print(where, file=sys.stderr, flush=True)
