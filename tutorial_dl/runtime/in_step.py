"""The training loop of strategies whose ranks do the same updates, or at least equally many."""

from __future__ import annotations

import time

import numpy as np

from numba_kernels.spans import each

from ..replica.consistency import check_same_weights
from .errors import Terminated, TrainingError


def train(trainer, epochs: int, bar, signals) -> None:
    """Train for `epochs` more epochs. Runs on every rank of the trainer's team; see Trainer.fit."""
    first = len(trainer.history.epochs)
    for epoch in range(first, first + epochs):
        one_epoch(trainer, epoch, bar, signals)
        if ends(trainer, signals):
            break
    for callback in trainer.callbacks:
        callback.on_fit_end(trainer)


def one_epoch(trainer, epoch: int, bar, signals) -> None:
    """Do the remaining updates of an epoch, validate, and append a row to the history."""
    since = time.perf_counter() - trainer.sums[2]
    for batch in each("data", trainer.batches.epoch(epoch, trainer.round)):
        if trainer.schedule is not None:
            trainer.strategy.set_rate(trainer.schedule(trainer.steps), trainer.correct_momentum)
        try:
            loss, samples = trainer.strategy.step(batch)
        except FloatingPointError as error:
            raise not_finite(trainer, error, epoch) from None
        trainer.steps += trainer.strategy.updates_a_step
        trainer.round += 1
        trainer.sums[:] += loss * samples, samples, 0
        alike = trainer.strategy.updates_a_step == 1  # else other ranks are changing them now
        if alike and (trainer.steps == 1 or trainer.steps % trainer.check_every == 0):
            check_same_weights(trainer.team, trainer.replica)
        bar.update(samples * trainer.strategy.updates_a_step)
        for callback in trainer.callbacks:
            callback.on_step_end(trainer, loss, samples)
        if trainer.saving is not None:
            trainer.sums[2] = time.perf_counter() - since
            trainer.saving.after_step()
            if trainer.pulse.beat(bool(signals)):
                raise Terminated(trainer.saving.write(), trainer.steps)
    trainer.strategy.average_state()
    trainer.strategy.settle()
    seconds = time.perf_counter() - since
    check_same_weights(trainer.team, trainer.replica)
    validation = trainer.evaluate()
    if not np.isfinite(validation["loss"]):
        raise TrainingError(
            f"the validation loss is {validation['loss']} after epoch {epoch + 1}; use a learning "
            f"rate below {trainer.strategy.optimizer.learning_rate}, or data without NaN"
        )
    loss, samples, _ = trainer.strategy.total(trainer.sums)
    loss /= samples
    row = (
        {"epoch": epoch + 1, "loss": float(loss)}
        | {f"val_{name}": value for name, value in validation.items()}
        | {"samples_per_second": float(samples / seconds), "seconds": float(seconds)}
    )
    if trainer.schedule is not None:
        row["learning_rate"] = trainer.strategy.optimizer.learning_rate
    trainer.history.epochs.append(row)
    trainer.round, trainer.sums = 0, np.zeros(3)
    bar.set_postfix(
        {"loss": f"{loss:.4f}"}
        | {f"val_{name}": f"{value:.4f}" for name, value in validation.items()},
        refresh=False,
    )
    for callback in trainer.callbacks:
        callback.on_epoch_end(trainer, row)


def not_finite(trainer, error: FloatingPointError, epoch: int) -> TrainingError:
    return TrainingError(
        f"{error} at step {trainer.steps + 1} (epoch {epoch + 1}) on rank {trainer.team.rank}; "
        f"use a learning rate below {trainer.strategy.optimizer.learning_rate}, or data without NaN"
    )


def ends(trainer, signals) -> bool:
    """After an epoch: whether any rank wants to stop; after SIGTERM, raises Terminated."""
    wishes = np.array([trainer.stopped is not None, bool(signals)], np.float64)
    stop, terminate = trainer.team.allreduce(wishes, "max")
    if stop and trainer.stopped is None:
        trainer.stopped = "another rank asked for it"
    path = trainer.saving.write() if trainer.saving is not None else None
    if terminate:
        raise Terminated(path, trainer.steps)
    return bool(stop)
