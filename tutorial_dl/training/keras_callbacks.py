"""Keras's callbacks in a Trainer: `Trainer(..., callbacks=[keras.callbacks.EarlyStopping()])`.

Those that decide (stop, change the learning rate) run on every rank; metrics are equal on all
ranks, so their decisions are, too. Those that write files run on rank 0. With a master, all run on
rank 0, where the validated weights are.
"""

import sys
import weakref
from typing import Any

from ..runtime.callback import Callback

ON_EVERY_RANK = ("EarlyStopping", "ReduceLROnPlateau", "LearningRateScheduler", "TerminateOnNaN",
                 "History")  # fmt: skip
ON_RANK_0 = ("ModelCheckpoint", "CSVLogger", "TensorBoard", "LambdaCallback")
CHANGE_RATES = ("ReduceLROnPlateau", "LearningRateScheduler")
INSTEAD = {
    "BackupAndRestore": "use Trainer(checkpoint=FOLDER) and trainer.resume()",
    "ProgbarLogger": "use Trainer(progress=True)",
}
NO_METRICS = ("epoch", "seconds", "samples_per_second")  # columns of the history


def adapted(callback: Any) -> Any:
    """A callback of Keras as one of ours; any other object as it is.

    Raises:
        TypeError: If this one can't be used on several ranks.
    """
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(callback, keras.callbacks.Callback):
        return callback
    kind = type(callback).__name__
    if type(callback) is not getattr(keras.callbacks, kind, None):
        raise TypeError(
            f"callback {kind} derives from keras.callbacks.Callback, and no one knows on which "
            "ranks it may run: give a function f(trainer, row), or a tutorial_dl Callback"
        )
    if kind not in ON_EVERY_RANK + ON_RANK_0:
        instead = INSTEAD.get(kind, f"use one of {', '.join(ON_EVERY_RANK + ON_RANK_0)}")
        raise TypeError(f"keras.callbacks.{kind} can't be used here: {instead}")
    return KerasCallback(callback, kind)


class KerasCallback(Callback):
    """Calls a callback of Keras at the events of a Trainer."""

    def __init__(self, callback: Any, kind: str):
        self.callback, self.kind = callback, kind
        self.runs = False  # on this rank
        self._begun = -1  # the epoch that has begun, from 0
        self._from = 0  # the step at which it began
        self._rate: float | None = None  # that the callback has set

    def on_fit_begin(self, trainer) -> None:
        if getattr(trainer.replica, "model", None) is None:
            raise ValueError(f"keras.callbacks.{self.kind} needs a Keras model")
        if self.kind == "ModelCheckpoint" and trainer.strategy.sharers is not trainer.team:
            raise ValueError(
                "keras.callbacks.ModelCheckpoint would write the model of rank 0's part: use "
                "callbacks.SaveBest, or Trainer(checkpoint=FOLDER)"
            )
        if stage := trainer.strategy.holding.stage:
            self._check_shards(stage)
        with_master = bool(trainer.layout.masters)
        if self.kind in CHANGE_RATES and (with_master or trainer.schedule is not None):
            why = "a learning rate schedule" if trainer.schedule is not None else "a master"
            raise ValueError(f"keras.callbacks.{self.kind} can't be used together with {why}")
        self.runs = trainer.team.rank == 0 or (self.kind in ON_EVERY_RANK and not with_master)
        if not self.runs:
            return
        if trainer.team.rank and hasattr(self.callback, "verbose"):
            self.callback.verbose = 0  # rank 0 prints
        self.callback.set_params({"verbose": 0, "steps": trainer.steps_per_epoch})
        self.callback.set_model(Model(trainer))
        if self._rate is not None and self.kind in CHANGE_RATES:
            # A resume has set the optimizer's own rate, and corrected the momentum; undo both.
            trainer.strategy.set_rate(self._rate, trainer.run.correct_momentum)
        self.callback.on_train_begin()
        self._begin_epoch(trainer, len(trainer.history.epochs))
        self._heed(trainer)

    def _check_shards(self, stage: int) -> None:
        """Raise ValueError for what reads or sets weights that ranks have divided."""
        reads = self.kind == "ModelCheckpoint" or getattr(self.callback, "histogram_freq", 0)
        if stage == 3 and reads:
            raise ValueError(
                f"keras.callbacks.{self.kind} would write zeros, as with shard 3 the model has no "
                "weights between steps: use callbacks.SaveBest, or shard 2"
            )
        if getattr(self.callback, "restore_best_weights", False):
            raise ValueError(
                "keras.callbacks.EarlyStopping can't restore weights that ranks have divided "
                f"(shard {stage}): use callbacks.EarlyStopping(restore_best=True)"
            )

    def on_step_end(self, trainer, loss: float, samples: int) -> None:
        if self.runs:
            step = trainer.steps - self._from - 1
            self.callback.on_train_batch_begin(step)  # (a Trainer has no event before a step)
            self.callback.on_train_batch_end(step, {"loss": loss})
            self._heed(trainer)

    def on_epoch_end(self, trainer, row: dict) -> None:
        if not self.runs:
            return
        numbers = {name: row[name] for name in row if name not in NO_METRICS}
        metrics = {name: float(v) for name, v in numbers.items() if isinstance(v, int | float)}
        self.callback.on_epoch_end(row["epoch"] - 1, metrics)
        self._begin_epoch(trainer, row["epoch"])
        self._heed(trainer)

    def on_fit_end(self, trainer) -> None:
        if self.runs:
            self.callback.on_train_end()

    def _begin_epoch(self, trainer, epoch: int) -> None:
        """Once for each epoch, though the end of one `fit` and the next both call it."""
        self._from = trainer.steps
        if epoch != self._begun:
            self._begun = epoch
            self.callback.on_epoch_begin(epoch)
        self._rate = trainer.strategy.optimizer.learning_rate

    def _heed(self, trainer) -> None:
        """A function of the user's may have set `stop_training` of the model itself."""
        model = trainer.replica.model
        if model.stop_training:
            model.stop_training = False
            trainer.stop("a callback of Keras asked for it")

    def save(self) -> tuple[dict, dict]:
        """Of those that change the learning rate: the rate, and the epoch it is for."""
        return ({"begun": self._begun, "rate": self._rate} if self.kind in CHANGE_RATES else {}), {}

    def restore(self, values: dict, vectors: dict) -> None:
        if values:
            self._begun, self._rate = values["begun"], values["rate"]

    def __repr__(self) -> str:
        return f"keras.callbacks.{self.kind}"


class Model:
    """The Keras model as its callbacks may use it while a Trainer trains it.

    Its weights lie in the replica's memory, so they are written there; `stop_training` and the
    learning rate are the Trainer's. (It knows the Trainer through a weak reference, so that
    dropping the Trainer frees its memory, though the user keeps the callback.)
    """

    def __init__(self, trainer):
        vars(self).update(trainer=weakref.ref(trainer), optimizer=OptimizerOf(trainer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer().replica.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "stop_training":
            setattr(self.trainer().replica.model, name, value)
        elif value:
            self.trainer().stop("a callback of Keras asked for it")

    @property
    def stop_training(self) -> bool:
        return self.trainer().stopped is not None

    def set_weights(self, weights: list) -> None:
        self.trainer().replica.set_weights(weights)


class OptimizerOf:
    """The part of an optimizer that callbacks of Keras use."""

    def __init__(self, trainer):
        self._trainer = weakref.ref(trainer)

    @property
    def iterations(self) -> int:
        return self._trainer().steps

    @property
    def learning_rate(self) -> float:
        return self._trainer().strategy.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._trainer().strategy.set_rate(float(rate), correct_momentum=False)
