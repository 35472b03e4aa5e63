"""Callbacks: actions besides training, after steps and epochs.

    Trainer(model, dataset, callbacks=[EarlyStopping(patience=3), Target("val_accuracy", 0.97)])

They run on every rank. Metrics in a row of the history are the same on all ranks, so decisions
based on them agree. Actions for one rank only (print, write a file) check `trainer.team.rank == 0`.
A function f(trainer, row) is a callback, too: it is called after each epoch.

With a master, ranks do not reach a step or an epoch together. There on_step_end and on_epoch_end
are called on rank 0, the master, with the validated weights in `trainer.replica`, and on_fit_end on
rank 0 before the other ranks. So such a callback must not wait for other ranks (Trainer.evaluate,
team.barrier); `trainer.replica.evaluate(batches)` runs on its own rank only.
"""

import math
import os
from pathlib import Path

import numpy as np
from tqdm import tqdm

from .. import options
from ..data import Batches
from ..replica.base import assign, check_ending
from ..runtime.callback import Callback, Function, callbacks_of
from .log import Log

__all__ = [
    "Callback", "EarlyStopping", "Function", "GrowBatch", "Log", "SaveBest", "Target",
    "Throughput", "callbacks_of", "rank_folder",
]  # fmt: skip


def rises(metric: str, mode: str) -> bool:
    """Whether a larger value is better; with "auto", only if the name says so."""
    if mode not in ("auto", "min", "max"):
        raise ValueError(f"mode must be 'auto', 'min' or 'max', got {mode!r}")
    return mode == "max" or (mode == "auto" and bool(options.rises(metric)))


def value_of(row: dict, metric: str) -> float:
    if metric not in row:
        known = ", ".join(name for name in row if name not in ("epoch", "seconds"))
        raise ValueError(f"unknown metric {metric!r}; choose one of {known}")
    return row[metric]


class EarlyStopping(Callback):
    """Stop when a metric has not improved for `patience` epochs.

    Args:
        metric: A column of the history.
        patience: Number of epochs without improvement.
        min_delta: An improvement must exceed this.
        mode: "min", "max", or "auto" by the metric's name.
        restore_best: End with the weights of the best epoch; this keeps a copy of them.
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
            raise ValueError(f"patience must be at least 1, got {patience}")
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
                f"{self.metric} has not improved since epoch {self.best_epoch}, "
                f"{self.sign * self.best:.4g}"
            )

    def on_fit_end(self, trainer) -> None:
        if self.weights is not None:
            assign(trainer.replica, self.weights, self.state)

    def save(self) -> tuple[dict, dict]:
        values = {"best": self.best, "best_epoch": self.best_epoch}
        if self.weights is None:
            return values, {}
        # Moving statistics are few, and JSON represents a float32 exactly.
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


class SaveBest(Callback):
    """Save the model on rank 0 after each epoch that is the best so far by a metric.

    Args:
        path: The file, see `Trainer.save`; it is replaced each time.
        metric: A column of the history.
        mode: "min", "max", or "auto" by the metric's name.
    """

    def __init__(self, path, metric: str = "val_loss", mode: str = "auto"):
        self.path, self.metric = path, metric
        self.sign, self.best = 1 if rises(metric, mode) else -1, -math.inf

    def on_fit_begin(self, trainer) -> None:
        check_ending(trainer.replica, self.path)

    def on_epoch_end(self, trainer, row: dict) -> None:
        score = self.sign * value_of(row, self.metric)
        if score > self.best:
            self.best = score
            trainer.save_model(self.path)

    def save(self) -> tuple[dict, dict]:
        return {"best": self.best}, {}

    def restore(self, values: dict, vectors: dict) -> None:
        self.best = values["best"]

    def __repr__(self) -> str:
        return f"SaveBest({str(self.path)!r}, {self.metric!r})"


class GrowBatch(Callback):
    """Double the batch, between epochs, while the critical batch size is at least twice as large.

    The learning rate stays: a larger batch takes the noise away that a smaller rate would (Smith et
    al., arXiv 1711.00489; Merrill et al., arXiv 2505.23971). It needs strategies.Synchronous(
    noise_scale=True), and data in arrays or HDF5 files. The history's column `batch_size` is that
    of each epoch.
    """

    def __init__(self):
        self.batch_size: int | None = None

    def on_fit_begin(self, trainer) -> None:
        if not isinstance(trainer.batches, Batches):
            raise ValueError("GrowBatch needs data in arrays or HDF5 files, not a stream")
        if trainer.strategy.noise is None:
            raise ValueError("GrowBatch needs strategies.Synchronous(noise_scale=True)")
        if self.batch_size is not None:
            trainer.batches.batch_size = self.batch_size

    def on_epoch_end(self, trainer, row: dict) -> None:
        row["batch_size"] = size = trainer.batches.batch_size
        grows = row["critical_batch_size"] >= 2 * size < len(trainer.batches.data)
        self.batch_size = trainer.batches.batch_size = 2 * size if grows else size

    def save(self) -> tuple[dict, dict]:
        return {"batch_size": self.batch_size}, {}

    def restore(self, values: dict, vectors: dict) -> None:
        self.batch_size = values["batch_size"]


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
    """Prints a line every `every` steps on rank 0: loss, samples/s of all ranks, time per step."""

    def __init__(self, every: int = 100, write=tqdm.write):
        if every < 1:
            raise ValueError(f"every must be at least 1 step, got {every}")
        self.every, self.write = every, write

    def on_fit_begin(self, trainer) -> None:
        self._loss = self._samples = 0
        self._since, self._at = trainer.clock.now(), trainer.steps

    def on_step_end(self, trainer, loss: float, samples: int) -> None:
        self._loss += loss * samples
        self._samples += samples
        # Several steps may be counted at once.
        if trainer.steps // self.every > self._at // self.every:
            seconds = trainer.clock.now() - self._since
            steps, all_samples = trainer.steps - self._at, self._samples
            all_samples *= trainer.strategy.apart
            speed = all_samples / seconds if seconds else math.inf  # the clock may stand still
            if trainer.team.rank == 0:
                self.write(
                    f"step {trainer.steps}: loss {self._loss / max(1, self._samples):.4f}, "
                    f"{speed:.0f} samples/s, "
                    f"{1e3 * seconds / steps:.2f} ms per step on {trainer.team.size} ranks"
                )
            self.on_fit_begin(trainer)


def rank_folder(team, path: str | os.PathLike) -> Path:
    """Make and return a folder for this rank's own files, such as `path`/rank_0003."""
    digits = max(4, len(str(team.size - 1)))
    folder = Path(path) / f"rank_{team.rank:0{digits}}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
