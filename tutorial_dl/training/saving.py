"""What a checkpoint of a Trainer holds, when one is written, and how training goes on from it.

Everything that the rest of a run depends on: weights and the optimizer's state (in slices), moving
statistics and random numbers of each rank, the place in the epoch, the history, what callbacks
remember. So a run that was killed and resumed on as many ranks ends with the same bits as one that
was not; on another number of ranks with the same samples in the same order.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np

from . import random_state
from .checkpoint import CheckpointError, Checkpoints
from .consistency import check_same_weights
from .validation import broadcast_text


class Saving:
    """Writes and reads a trainer's checkpoints.

    Args:
        trainer: Whose.
        folder: Where.
        every: Steps from one to the next; None: at the end of each epoch only.
        keep: How many stay.
    """

    def __init__(self, trainer, folder, every: int | None, keep: int):
        if every is not None and every < 1:
            raise ValueError(f"a checkpoint every {every} steps; 1 or more is right")
        self.trainer, self.every = trainer, every
        self.checkpoints = Checkpoints(trainer.team, folder, keep)
        self.resumed = False

    def check_folder(self) -> None:
        """ValueError on all ranks if what is there is another run's. Collective."""
        if self.resumed:
            return
        team = self.trainer.team
        team.ready()
        if team.broadcast(np.array([len(self.checkpoints.steps())]))[0]:
            raise ValueError(
                f"{self.checkpoints.folder} holds checkpoints already: resume from them, or name "
                "another folder"
            )

    def after_step(self) -> None:
        t = self.trainer
        before = t.steps - t.strategy.updates_a_step
        due = self.every is not None and t.steps // self.every > before // self.every
        if due and not t.epoch_is_complete:  # the end of the epoch writes one of this step
            self.write()

    def write(self):
        """Write one now; collective. Returns its path. DriftError if ranks' weights differ."""
        t = self.trainer
        t.strategy.settle()
        check_same_weights(t.team, t.replica)  # slices of different models are none
        values, vectors, own = t.strategy.save()
        first, last = t.team.slice_of(t.replica.parameters.size)
        content, more = self.content(values, first, last)
        bounds = [t.team.slice_of(t.replica.parameters.size, r) for r in range(t.team.size)]
        content["slices"] = [b - a for a, b in bounds]
        self.resumed = True  # what is in the folder is ours from here on
        own |= random_state.save(t.replica)
        return self.checkpoints.write(t.steps, content, vectors | more, own)

    def content(self, of_strategy: dict, first: int, last: int) -> tuple[dict, dict]:
        """(values, vectors): all but what is the strategy's; elements [first, last) of vectors."""
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
        """Go on from the newest checkpoint, if there is one; collective.

        Raises CheckpointError where it is of another model, or of other settings.
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
        """What is neither the strategy's nor a rank's own."""
        t = self.trainer
        t.history.epochs[:] = saved.values["history"]
        # Who is asked other questions now may go on.
        same = saved.values["reasons"] == [repr(callback) for callback in t.callbacks]
        t.stopped = saved.values["stopped"] if same else None
        t.go_to(saved.values["place"])
        if t.schedule is None:  # else the next step sets it
            t.strategy.set_rate(t.optimizer.learning_rate, t.correct_momentum)
        if saved.values["rate"] != rate(t) and t.team.rank == 0:
            was = saved.values["rate"]
            print(f"note: the learning rate was {was}, and is {rate(t)} now", file=sys.stderr)
        n = t.replica.parameters.size
        remembered = list(enumerate(saved.values["callbacks"]))
        for callback in t.callbacks:  # one that is new begins as it is
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
            # Names say nothing: Keras numbers the layers of a process.
            if ours[1:] != other[1:]:
                raise CheckpointError(
                    f"{path} is of another model: its layer {other[0]!r} has shape {other[2]}, "
                    f"here {ours[0]!r} has shape {ours[2]}"
                )
        if len(mine["layers"]) != len(theirs["layers"]) or mine["dtype"] != theirs["dtype"]:
            raise CheckpointError(
                f"{path} is of another model: {len(theirs['layers'])} layers of "
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
    """How many moving statistics and seeds a model has: layers without weights show here."""
    seeds = getattr(replica, "random", None)
    return [replica.state.size, 0 if seeds is None else seeds.size]


def agree_on_callbacks(team, callbacks) -> None:
    """After a failure: what the last rank's callbacks remember, on all ranks. Collective.

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
    """One line on stderr of where training goes on, to `epochs` in all."""
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
