"""Callbacks: what is to happen besides training, after steps and epochs.

    Trainer(model, dataset, callbacks=[EarlyStopping(patience=3), Target("val_accuracy", 0.97)])

They run on every rank. Metrics in a history's row are the same on all ranks, so ranks that decide
by them agree; what only one may do (print, write a file) asks `trainer.team.rank == 0`.
A function f(trainer, row) is a callback too: it is called after each epoch.

Strategies with a master have no step or epoch that all ranks are at together: there on_step_end and
on_epoch_end are called on rank 0, the master's, with the weights that were validated in
`trainer.replica`, and on_fit_end on rank 0 before the others. So a callback must not wait for other
ranks there (Trainer.evaluate, team.barrier); `trainer.replica.evaluate(batches)` is its own rank's.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm


class Callback:
    """Base class; override what is needed. `row` is the epoch's in the history."""

    def on_fit_begin(self, trainer) -> None: ...

    def on_step_end(self, trainer, loss: float, samples: int) -> None:
        """After an update; both of all ranks together. `trainer.steps` counts it."""

    def on_epoch_end(self, trainer, row: dict) -> None:
        """After validation. `trainer.stop(why)` ends training here."""

    def on_fit_end(self, trainer) -> None:
        """Also when training stopped early; not after an error."""

    def __repr__(self) -> str:
        return type(self).__name__

    # What a checkpoint keeps of it

    def save(self) -> tuple[dict, dict]:
        """(values that JSON can hold, name -> vectors [n] that are equal on all ranks)."""
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
    """Checked; TypeError for what is neither a Callback nor a function."""
    found = []
    for one in given:
        if not isinstance(one, Callback):
            if isinstance(one, type) or not callable(one):
                raise TypeError(
                    f"callback {one!r}: a Callback object or a function f(trainer, row) is needed"
                )
            one = Function(one)
        found.append(one)
    return found


def rises(metric: str, mode: str) -> bool:
    """Whether more is better. "auto": of accuracies and AUC it is, of all else less is."""
    if mode not in ("auto", "min", "max"):
        raise ValueError(f"mode {mode!r}: 'auto', 'min' or 'max' is right")
    return mode == "max" or (mode == "auto" and ("acc" in metric or "auc" in metric.lower()))


def value_of(row: dict, metric: str) -> float:
    if metric not in row:
        known = ", ".join(name for name in row if name not in ("epoch", "seconds"))
        raise ValueError(f"there is no metric {metric!r}; one of {known}")
    return row[metric]


class EarlyStopping(Callback):
    """Stop when a metric has not become better for `patience` epochs.

    Args:
        metric: A column of the history.
        patience: Epochs.
        min_delta: What counts as better is better by more than this.
        mode: "min", "max", or "auto" by the metric's name.
        restore_best: End with the weights of the best epoch, of which a copy is kept.
    """

    def __init__(
        self,
        metric: str = "val_loss",
        patience: int = 3,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best: bool = False,
    ):
        if patience < 1:
            raise ValueError(f"patience of {patience} epochs: 1 or more is needed")
        self.metric, self.patience, self.min_delta = metric, patience, min_delta
        self.sign = 1 if rises(metric, mode) else -1
        self.restore_best = restore_best
        self.best, self.best_epoch, self.weights, self.state = -math.inf, 0, None, None

    def on_epoch_end(self, trainer, row: dict) -> None:
        score = self.sign * value_of(row, self.metric)
        if score > self.best + self.min_delta:
            self.best, self.best_epoch = score, row["epoch"]
            if self.restore_best:
                self.weights = trainer.replica.parameters.copy()
                self.state = trainer.replica.state.copy()
        elif row["epoch"] - self.best_epoch >= self.patience:
            trainer.stop(
                f"{self.metric} is no better than in epoch {self.best_epoch}, "
                f"{self.sign * self.best:.4g}"
            )

    def on_fit_end(self, trainer) -> None:
        if self.weights is not None:
            trainer.replica.parameters[:] = self.weights
            if self.state.size:
                trainer.replica.state = self.state

    def save(self) -> tuple[dict, dict]:
        values = {"best": self.best, "best_epoch": self.best_epoch}
        if self.weights is None:
            return values, {}
        # (Of moving statistics there are few: a float32 is the same number in JSON.)
        return {**values, "state": self.state.tolist()}, {"weights": self.weights}

    def restore(self, values: dict, vectors: dict) -> None:
        self.best, self.best_epoch = values["best"], values["best_epoch"]
        self.weights = vectors.get("weights")
        if self.weights is not None:
            self.state = np.array(values["state"], self.weights.dtype)

    def __repr__(self) -> str:
        return (
            f"EarlyStopping({self.metric!r}, patience={self.patience}, "
            f"min_delta={self.min_delta:g}, restore_best={self.restore_best})"
        )


class Target(Callback):
    """Stop when a metric has reached `value`: `Target("val_accuracy", 0.97)`."""

    def __init__(self, metric: str, value: float, mode: str = "auto"):
        self.metric, self.value, self.rising = metric, value, rises(metric, mode)

    def __repr__(self) -> str:
        return f"Target({self.metric!r}, {self.value:g})"

    def on_epoch_end(self, trainer, row: dict) -> None:
        now = value_of(row, self.metric)
        if now >= self.value if self.rising else now <= self.value:
            trainer.stop(f"{self.metric} {now:.4g} has reached {self.value:g}")


class Throughput(Callback):
    """A line every `every` steps, on rank 0: loss, samples/s of all ranks, time of a step."""

    def __init__(self, every: int = 100, write=tqdm.write):
        if every < 1:
            raise ValueError(f"every {every} steps: 1 or more is needed")
        self.every, self.write = every, write

    def on_fit_begin(self, trainer) -> None:
        self._begin(trainer)

    def _begin(self, trainer) -> None:
        self._loss = self._samples = 0
        self._since, self._at = time.perf_counter(), trainer.steps

    def on_step_end(self, trainer, loss: float, samples: int) -> None:
        self._loss += loss * samples
        self._samples += samples
        # (Steps may come several at once.)
        if trainer.steps // self.every > self._at // self.every:
            seconds = time.perf_counter() - self._since
            steps, all_samples = trainer.steps - self._at, self._samples
            all_samples *= getattr(trainer.strategy, "updates_a_step", 1)
            if trainer.team.rank == 0:
                self.write(
                    f"step {trainer.steps}: loss {self._loss / max(1, self._samples):.4f}, "
                    f"{all_samples / seconds:.0f} samples/s, "
                    f"{1e3 * seconds / steps:.2f} ms a step on {trainer.team.size} ranks"
                )
            self._begin(trainer)


def rank_folder(team, path: str | os.PathLike) -> Path:
    """`path`/rank_0003 and the like, made: where rank 3 may write what is its own."""
    digits = max(4, len(str(team.size - 1)))
    folder = Path(path) / f"rank_{team.rank:0{digits}}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
