"""`Saving`: the contents of a run's checkpoint, when it is written, and how training resumes.

A checkpoint of a run in step holds everything that the rest of the run depends on: weights and the
optimizer's state (in slices), the loss scale, moving statistics and random state of each rank, what
compression keeps (its residual and basis), the position in the epoch, the history, and the state of
callbacks. If such a run is killed and resumed on equally many ranks, it ends with the same bits as
an uninterrupted one; on another number of ranks it sees the same samples in the same order.
(Hogwild's updates depend on timing, so its runs differ anyway. For a run with a master see
master.py.)
"""

import sys
from collections.abc import Callable

import numpy as np

from ..replica import random_state
from ..replica.consistency import check_same_weights
from .format import CheckpointError, Checkpoints


class Saving:
    """Writes checkpoints every `every` steps (None: after each epoch only), and reads them."""

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
                f"{self.checkpoints.folder} already holds checkpoints: resume from them "
                "(--resume), or choose another folder"
            )

    def due(self, before: int) -> bool:
        """Whether a checkpoint is due, if the last chance to write one was after step `before`."""
        return self.every is not None and self.run.steps // self.every > before // self.every

    def after_step(self) -> None:
        """Write a checkpoint if one is due. (After the last step of an epoch, the loop does it.)"""
        run = self.run
        before = run.steps - run.strategy.updates_a_step
        if self.due(before) and run.round != run.batches.rounds:
            self.write()

    def write(self):
        """Write a checkpoint now, and return its path; DriftError if weights differ. Collective."""
        run, vectors, own, told = self.run, {}, {}, []
        for player in run.players:
            player.strategy.settle()
            # Slices must come from equal models.
            check_same_weights(player.strategy.copies, player.replica)
            values, its_vectors, its_own = player.strategy.save()
            its_own |= random_state.save(player.replica)
            label = "" if player is run.player else f"{player.name}:"
            vectors |= {label + name: vector for name, vector in its_vectors.items()}
            own |= {label + name: array for name, array in its_own.items()}
            told.append(of_player(player, values) | {"slices": stretches(player.strategy)})
        stretch = run.team.slice_of(run.strategy.holding.size)
        content, more = self.content(lambda vector: run.strategy.holding.joined(vector, *stretch))
        content |= told[0]
        if told[1:]:
            names = [player.name for player in run.players[1:]]
            content["players"] = dict(zip(names, told[1:], strict=True))
        own["sums"] = run.sums
        self.resumed = True  # from now on, the checkpoints in the folder are ours
        return self.checkpoints.write(run.steps, content, vectors | more, own)

    def content(self, mine: Callable[[np.ndarray], np.ndarray]) -> tuple[dict, dict]:
        """(values, vectors) of the run itself, its history and its callbacks, without the players.

        `mine(vector)` is what this rank writes of a vector.
        """
        run, vectors = self.run, {}
        remembered = []
        for number, callback in enumerate(run.callbacks):
            of_it, its_vectors = callback.save()
            remembered.append([type(callback).__name__, of_it, list(its_vectors)])
            for name, vector in its_vectors.items():
                vectors[f"callback_{number}:{name}"] = mine(vector)
        return {
            "settings": run.settings(),
            "place": run.place(),
            "history": run.history.epochs,
            "stopped": None if run.round else run.stopped,
            "reasons": [repr(callback) for callback in run.callbacks],
            "callbacks": remembered,
        }, vectors

    def read(self) -> bool:
        """Resume from the newest checkpoint, if there is one. Collective."""
        run, saved = self.run, self.checkpoints.newest()
        self.resumed = True
        if saved is None:
            return False
        for player, its in self.check(saved):
            player.strategy.restore(its)
            random_state.restore(player.replica, its, run.team.rank)
            before, now = (
                its.values.get("computing_a_sample", 1),
                player.strategy.ranks_a_sample,
            )
            alike = (its.ranks, before) == (run.team.size, now)  # ranks have read their own seeds
            if max(before, now) > 1 and not alike:
                random_state.of_copy(player.replica, its, player.strategy.sharers.rank)
        self.take_up(saved)
        if run.strategy.apart > 1 and saved.has_own("sums"):
            run.sums = saved.own("sums", run.team.rank)
        return True

    def take_up(self, saved) -> None:
        """Restore what `content` has saved: history, position and callbacks; and the rates."""
        run = self.run
        run.history.epochs[:] = saved.values["history"]
        # With other callbacks, a run that was stopped may continue.
        same = saved.values["reasons"] == [repr(callback) for callback in run.callbacks]
        run.stopped = saved.values["stopped"] if same else None
        run.go_to(saved.values["place"])
        for player, its in self.players(saved):
            if player.schedule is None:  # else the next step sets it
                player.strategy.set_rate(player.optimizer.learning_rate, run.correct_momentum)
            if (was := its.values["rate"]) != rate(player) and run.team.rank == 0:
                note = f"the learning rate was {was} and is now {rate(player)}"
                print(f"note: {run.label(player, note, ': ')}", file=sys.stderr)
        remembered = list(enumerate(saved.values["callbacks"]))
        for callback in run.callbacks:  # a new callback keeps its initial state
            own = [it for it in remembered if it[1][0] == type(callback).__name__]
            if own:
                remembered.remove(own[0])
                number, (_, values, names) = own[0]
                keys = {name: f"callback_{number}:{name}" for name in names}
                callback.restore(values, {name: self.vector(saved, k) for name, k in keys.items()})

    def vector(self, saved, name: str) -> np.ndarray:
        """This rank's vector, from the whole model's in a Snapshot."""
        dtype = saved.vector(name, 0, 0).dtype
        found = np.zeros(self.run.replica.parameters.size, dtype)
        self.run.strategy.holding.take(lambda *part: saved.vector(name, *part), found)
        return found

    def players(self, saved) -> list:
        """Each player, and the Snapshot as if it were the run's only one."""
        first, *others = self.run.players
        theirs = saved.values.get("players", {})
        parts = [(one, saved.with_prefix(f"{one.name}:", theirs[one.name])) for one in others]
        return [(first, saved), *parts]

    def check(self, saved) -> list:
        """Raise CheckpointError if it is from another run; else return what `players` returns."""
        run, path = self.run, saved.path
        names = [player.name for player in run.players[1:]]
        if (theirs := list(saved.values.get("players", {}))) != names:
            raise CheckpointError(f"{path} was written with further players {theirs}, not {names}")
        found = self.players(saved)
        for player, its in found:
            mine = of_player(player, {})
            check_model(path, mine["model"], its.values["model"])
            for key, what in COMPARED.items():
                check_equal(path, what, its.values.get(key), mine[key])
        # Where ranks keep state of their own, their number is a setting; one rank has stored none.
        theirs, ours = ({"ranks": 1} | of for of in (saved.values["settings"], run.settings()))
        for name in ours | theirs:
            check_equal(path, name, theirs.get(name), ours.get(name))
        return found


# What a checkpoint and the run that it resumes have in common: key of `of_player` -> in words
COMPARED = {
    "by": "strategy",
    "optimizer": "the optimizer",
    "compression": "compression",
    "sizes": "numbers beside the weights",
}


def check_equal(path, what: str, theirs, ours) -> None:
    if theirs != ours:
        raise CheckpointError(f"{path} was written with {what} {theirs}, not {ours}")


def check_model(path, mine: dict, theirs: dict) -> None:
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


def of_player(player, of_strategy: dict) -> dict:
    """The values that a checkpoint holds of one player."""
    replica, strategy = player.replica, player.strategy
    seeds = replica.random
    return {
        "model": model_of(strategy.holding.whole, replica.parameters.dtype),
        # The rate may change
        "optimizer": numbered(player.optimizer.at_rate(0.0), strategy.holding.whole),
        "rate": rate(player),
        "compression": str(strategy.compression),
        # Moving statistics and seeds, which reveal layers without weights:
        "sizes": [replica.state.size, 0 if seeds is None else seeds.size],
        "by": type(strategy).__name__,
        "strategy": of_strategy,
        "computing_a_sample": strategy.ranks_a_sample,
    }


def numbered(optimizer, segments) -> str:
    """The optimizer in words, with numbers of weights instead of their names.

    Keras numbers the layers of a process, so names differ where another has made other models.
    """
    words = str(optimizer)
    for number, one in enumerate(segments):
        words = words.replace(repr(one.name), str(number))
    return words


def stretches(strategy) -> list[int]:
    """How many elements of the whole model's vectors each rank writes, one after the other."""
    bounds = [strategy.team.slice_of(strategy.holding.size, r) for r in range(strategy.team.size)]
    return [last - first for first, last in bounds]


def model_of(segments, dtype) -> dict:
    """What `check_model` compares of a model."""
    return {"dtype": str(dtype), "layers": [[s.name, s.offset, list(s.shape)] for s in segments]}


def rate(player) -> str:
    return str(player.schedule or f"{player.optimizer.learning_rate:g}")


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
