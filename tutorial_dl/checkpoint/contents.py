"""`Saving`: the contents of a run's checkpoint, when it is written, and how training resumes.

A checkpoint holds everything that the rest of a run depends on: weights and the optimizer's state
(in slices), moving statistics and random state of each rank, the position in the epoch, the
history, and the state of callbacks. So a run that was killed and resumed on equally many ranks ends
with the same bits as an uninterrupted one; on another number of ranks it sees the same samples in
the same order.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from ..replica import random_state
from ..replica.consistency import check_same_weights
from .format import CheckpointError, Checkpoints


class Saving:
    """Writes and reads a run's checkpoints.

    Args:
        run: The state to save.
        folder: The folder of the checkpoints.
        every: Steps between two checkpoints; None: at the end of each epoch only.
        keep: Number of checkpoints to keep.
    """

    def __init__(self, run, folder, every: int | None, keep: int):
        if every is not None and every < 1:
            raise ValueError(f"checkpoint_every must be at least 1 step, got {every}")
        self.run, self.every = run, every
        self.checkpoints = Checkpoints(run.team, folder, keep)
        self.resumed = False

    def check_folder(self) -> None:
        """Raise ValueError on all ranks if the folder has another run's checkpoints. Collective."""
        if self.resumed:
            return
        team = self.run.team
        team.ready()
        if team.broadcast(np.array([len(self.checkpoints.steps())]))[0]:
            raise ValueError(
                f"{self.checkpoints.folder} already holds checkpoints: resume from them, or choose "
                "another folder"
            )

    def after_step(self) -> None:
        run = self.run
        before = run.steps - run.strategy.updates_a_step
        due = self.every is not None and run.steps // self.every > before // self.every
        if due and not run.epoch_is_complete:  # else the end of the epoch writes one
            self.write()

    def write(self):
        """Write a checkpoint now; collective.

        Returns:
            Its path.

        Raises:
            DriftError: If the ranks' weights differ.
        """
        run = self.run
        run.strategy.settle()
        check_same_weights(run.team, run.replica)  # slices must come from equal models
        values, vectors, own = run.strategy.save()
        first, last = run.team.slice_of(run.replica.parameters.size)
        content, more = self.content(values, first, last)
        bounds = [run.team.slice_of(run.replica.parameters.size, r) for r in range(run.team.size)]
        content["slices"] = [b - a for a, b in bounds]
        self.resumed = True  # from now on, the checkpoints in the folder are ours
        own |= random_state.save(run.replica)
        return self.checkpoints.write(run.steps, content, vectors | more, own)

    def content(self, of_strategy: dict, first: int, last: int) -> tuple[dict, dict]:
        """(values, vectors) besides the strategy's vectors; elements [first, last) of each."""
        run, vectors = self.run, {}
        remembered = []
        for number, callback in enumerate(run.callbacks):
            of_it, its_vectors = callback.save()
            remembered.append([type(callback).__name__, of_it, list(its_vectors)])
            for name, vector in its_vectors.items():
                vectors[f"callback_{number}:{name}"] = vector[first:last]
        return {
            "settings": run.settings(),
            "model": layers(run.replica),
            "optimizer": str(rule(run.optimizer)),
            "rate": rate(run),
            "compression": str(getattr(run.strategy, "compression", None)),
            "sizes": sizes(run.replica),
            "place": run.place(),
            "history": run.history.epochs,
            "stopped": run.stopped if run.at_epoch_begin else None,
            "reasons": [repr(callback) for callback in run.callbacks],
            "by": type(run.strategy).__name__,
            "strategy": of_strategy,
            "callbacks": remembered,
        }, vectors

    def read(self) -> bool:
        """Resume from the newest checkpoint, if there is one; collective.

        Raises:
            CheckpointError: If it is from another model or other settings.
        """
        run, saved = self.run, self.checkpoints.newest()
        self.resumed = True
        if saved is None:
            return False
        self.check(saved)
        run.strategy.restore(saved)
        random_state.restore(run.replica, saved, run.team.rank)
        self.take_up(saved)
        return True

    def take_up(self, saved) -> None:
        """Restore everything except the strategy's state and each rank's own."""
        run = self.run
        run.history.epochs[:] = saved.values["history"]
        # With other callbacks, a run that was stopped may continue.
        same = saved.values["reasons"] == [repr(callback) for callback in run.callbacks]
        run.stopped = saved.values["stopped"] if same else None
        run.go_to(saved.values["place"])
        if run.schedule is None:  # else the next step sets it
            run.strategy.set_rate(run.optimizer.learning_rate, run.correct_momentum)
        if saved.values["rate"] != rate(run) and run.team.rank == 0:
            was = saved.values["rate"]
            print(f"note: the learning rate was {was} and is now {rate(run)}", file=sys.stderr)
        n = run.replica.parameters.size
        remembered = list(enumerate(saved.values["callbacks"]))
        for callback in run.callbacks:  # a new callback keeps its initial state
            own = [it for it in remembered if it[1][0] == type(callback).__name__]
            if own:
                remembered.remove(own[0])
                number, (_, values, names) = own[0]
                keys = {name: f"callback_{number}:{name}" for name in names}
                callback.restore(values, {name: saved.vector(k, 0, n) for name, k in keys.items()})

    def check(self, saved) -> None:
        run, path = self.run, saved.path
        mine, theirs = layers(run.replica), saved.values["model"]
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
            "strategy": (saved.values.get("by"), type(run.strategy).__name__),
            "the optimizer": (saved.values["optimizer"], str(rule(run.optimizer))),
            "compression": (
                saved.values["compression"],
                str(getattr(run.strategy, "compression", None)),
            ),
            "numbers beside the weights": (saved.values["sizes"], sizes(run.replica)),
        }
        for name, value in run.settings().items():
            pairs[name] = (saved.values["settings"].get(name), value)
        for name, (other, ours) in pairs.items():
            if other != ours:
                raise CheckpointError(f"{path} was written with {name} {other}, not {ours}")


def rule(optimizer):
    """The optimizer without its learning rate, which may change."""
    return replace(optimizer, learning_rate=0.0)


def rate(run) -> str:
    return str(run.schedule or f"{run.optimizer.learning_rate:g}")


def sizes(replica) -> list[int]:
    """Numbers of moving statistics and seeds of a model, which reveal layers without weights."""
    seeds = replica.random
    return [replica.state.size, 0 if seeds is None else seeds.size]


def layers(replica) -> dict:
    return {
        "dtype": str(replica.parameters.dtype),
        "layers": [[s.name, s.offset, list(s.shape)] for s in replica.segments],
    }


def tell_resumed(run, found: bool, epochs: int) -> None:
    """Print one line to stderr that says where training resumes, up to `epochs` in all."""
    if run.team.rank == 0:
        done = len(run.history.epochs)
        where = f"going on from step {run.steps}, epoch {done + 1}"
        if not found:
            where = "no checkpoint yet: training from the beginning"
        elif run.stopped is not None:
            where = f"the run was stopped before: {run.stopped}; nothing is left to train"
        elif done >= epochs:
            where = f"{done} epochs are done; nothing is left to train of --epochs {epochs}"
        print(where, file=sys.stderr, flush=True)
