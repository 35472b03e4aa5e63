"""`Callback`: what a loop asks of a callback."""

import numpy as np

from numba_kernels.team.bytes import broadcast


class Callback:
    """Base class; override the methods you need. `row` is the epoch's row in the history."""

    def on_fit_begin(self, trainer) -> None: ...

    def on_step_end(self, trainer, loss: float, samples: int) -> None:
        """Called after an update, with its loss and samples; `trainer.steps` counts it."""

    def on_epoch_end(self, trainer, row: dict) -> None:
        """Called after validation. `trainer.stop(why)` ends training after this epoch."""

    def on_fit_end(self, trainer) -> None:
        """Called at the end of training, also if it stopped early, but not after an error."""

    def shown(self) -> str:
        """HTML for what a notebook shows while it trains, on rank 0; "" for nothing."""
        return ""

    def __repr__(self) -> str:
        return type(self).__name__

    # State for checkpoints

    def save(self) -> tuple[dict, dict]:
        """Return (values that JSON can hold, {name: vector (n,) that is equal on all ranks})."""
        return {}, {}

    def restore(self, values: dict, vectors: dict) -> None:
        """The reverse of `save`."""


class Function(Callback):
    """A plain function, called after each epoch."""

    def __init__(self, function):
        self.function = function

    def on_epoch_end(self, trainer, row: dict) -> None:
        self.function(trainer, row)


def callbacks_of(given) -> list[Callback]:
    """Convert to a list of Callback; raises TypeError for anything but Callbacks and functions."""
    found = []
    for one in given:
        if not isinstance(one, Callback):
            if isinstance(one, type) or not callable(one):
                raise TypeError(
                    f"callback must be a Callback object or a function f(trainer, row), got {one!r}"
                )
            one = Function(one)
        found.append(one)
    return found


def agree_on_callbacks(team, callbacks, whole: bool = True) -> None:
    """After a failure, give all ranks the state of the last rank's callbacks. Collective.

    A callback that failed may have seen an epoch on some ranks only. Where ranks have parts of a
    model (not `whole`), each keeps its part of the vectors, if all have seen the same epochs; if
    not, the vectors are dropped, as parts of two epochs make no model.
    """
    root = team.size - 1
    # Ranks must take the same way, though one of several parts may be all of a small model
    whole = bool(team.allreduce(np.array([float(whole)]), "min")[0])
    for callback in callbacks:
        values, vectors = callback.save()
        if whole:
            callback.restore(*broadcast(team, (values, vectors), root))
            continue
        common = broadcast(team, values, root)
        alike = team.allreduce(np.array([float(repr(values) == repr(common))]), "min")[0]
        callback.restore(common, vectors if alike else {})
