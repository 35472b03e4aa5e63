"""Trainer: the one loop that every model and every strategy is trained by."""

from __future__ import annotations

import time

import numpy as np
from tqdm import tqdm

from numba_kernels import optimizers
from numba_kernels.team import Team, abort_all

from .. import replica as replicas
from .. import strategies
from ..data import Batches, Dataset, dataset_of
from .consistency import check_same_weights
from .history import History
from .validation import evaluate


class TrainingError(RuntimeError):
    """Training can't go on: the loss is no longer a number."""


class Trainer:
    """Trains a model on a data set by a strategy, on all ranks of the strategy's team.

    Args:
        model: a Replica, or a compiled keras.Model (its own optimizer is not used)
        dataset: what to train and to validate on, the same on every rank: a Dataset, or
            ((x, y), (x_val, y_val)) of arrays
        strategy: its name, or a strategy object (which brings its team)
        optimizer: its name, or an optimizer object
        batch_size: samples an update, of all ranks together: more ranks do the same updates
            faster, and end with the same weights
        seed: of the order of samples
        team: for a strategy given by name; all ranks if None
        progress: a progress bar on rank 0
        validation_batch_size: samples a rank evaluates at once; changes no result

    Raises ValueError or TypeError for what can't be used, before anything is trained.
    """

    def __init__(
        self,
        model,
        dataset: Dataset,
        strategy="synchronous",
        optimizer="adam",
        batch_size: int = 32,
        seed: int = 0,
        team: Team | None = None,
        progress: bool = True,
        validation_batch_size: int = 512,
    ):
        self.strategy = strategies.get(strategy, team) if isinstance(strategy, str) else strategy
        self.team = self.strategy.team
        self.replica = replicas.of(model)
        self.dataset = dataset = dataset_of(dataset)
        self.optimizer = optimizers.get(optimizer)
        rank, ranks = self.team.rank, self.team.size
        self.batches = Batches(dataset.train, batch_size, seed=seed, rank=rank, ranks=ranks)
        self.validation_batch_size = validation_batch_size
        self.progress = progress and rank == 0
        self.history = History()
        self._steps = 0
        self._attached = False

    def fit(self, epochs: int) -> History:
        """Train for `epochs` more epochs; returns the history of all so far.

        Raises TrainingError when the loss is not finite, PeerError when another rank failed. If
        this rank fails, for whatever reason, the other ranks are told.
        """
        if epochs < 1:
            raise ValueError(f"{epochs} epochs; 1 or more are needed")
        try:
            if not self._attached:
                self.check_agreement()
                self.strategy.attach(self.replica, self.optimizer)
                self._attached = True
            first = len(self.history.epochs)
            with self._bar(epochs) as bar:
                for epoch in range(first, first + epochs):
                    self._epoch(epoch, bar)
        except BaseException as error:
            abort_all(error)
            raise
        return self.history

    def evaluate(self, data=None) -> dict[str, float]:
        """Metrics over the validation data (or `data`), shared out over the ranks."""
        data = self.dataset.validation if data is None else data
        try:
            return evaluate(self.team, self.replica, data, self.validation_batch_size)
        except BaseException as error:
            abort_all(error)
            raise

    def check_agreement(self) -> None:
        """ValueError on all ranks if they were given different data or settings."""
        mine = {
            "parameters": self.replica.parameters.size,
            "training samples": len(self.dataset.train),
            "validation samples": len(self.dataset.validation),
            "batch size": self.batches.batch_size,
            "seed": self.batches.seed,
        }
        table = self.team.allgather(np.array(list(mine.values()), np.float64))
        for column, (name, value) in enumerate(mine.items()):
            others = np.flatnonzero(table[:, column] != value)
            if others.size:
                raise ValueError(
                    f"rank {self.team.rank} has {value} {name}, rank {others[0]} has "
                    f"{int(table[others[0], column])}; all ranks must be given the same"
                )

    def _epoch(self, epoch: int, bar) -> None:
        started = time.perf_counter()
        total_loss = total_samples = 0
        for batch in self.batches.epoch(epoch):
            try:
                loss, samples = self.strategy.step(batch)
            except FloatingPointError as error:
                raise self._not_finite(error, epoch) from None
            total_loss += loss * samples
            total_samples += samples
            self._steps += 1
            if self._steps == 1:
                check_same_weights(self.team, self.replica)
            bar.update(samples)
        self.strategy.average_state()
        seconds = time.perf_counter() - started
        check_same_weights(self.team, self.replica)
        validation = self.evaluate()
        if not np.isfinite(validation["loss"]):
            raise TrainingError(
                f"the validation loss is {validation['loss']} after epoch {epoch + 1}; a learning "
                f"rate below {self.optimizer.learning_rate}, or data without NaN, is needed"
            )
        self.history.epochs.append(
            {"epoch": epoch + 1, "loss": total_loss / total_samples}
            | {f"val_{name}": value for name, value in validation.items()}
            | {"samples_per_second": total_samples / seconds, "seconds": seconds}
        )
        bar.set_postfix(
            {"loss": f"{total_loss / total_samples:.4f}"}
            | {f"val_{name}": f"{value:.4f}" for name, value in validation.items()},
            refresh=False,
        )

    def _not_finite(self, error: FloatingPointError, epoch: int) -> TrainingError:
        return TrainingError(
            f"{error} at step {self._steps + 1} (epoch {epoch + 1}) on rank {self.team.rank}; "
            f"a learning rate below {self.optimizer.learning_rate}, or data without NaN, is needed"
        )

    def _bar(self, epochs: int):
        what = f"{type(self.strategy).__name__.lower()} on {self.team.size} rank"
        return tqdm(
            total=epochs * len(self.dataset.train),
            desc=what + "s" * (self.team.size > 1),
            unit=" samples",
            unit_scale=True,
            mininterval=0.5,
            disable=not self.progress,
        )
