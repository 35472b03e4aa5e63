"""`Top`: the master at the top, which also keeps the history, validates, saves, and ends the run.

With sub-masters below it, it is a TopOfGroups (hierarchical_master.py).
"""

from __future__ import annotations

import time

import numpy as np

from ...checkpoint.master import write
from ..errors import NotFinite
from .master import Hub
from .messages import Order
from .validation import Validation


class Top(Hub):
    """The top master of workers.

    Args:
        trainer, star, ranks, tasks: See `Hub`.
        names: Names of the metrics that workers send.
        bar: The progress bar.
        signals: A list that becomes non-empty when the run must end (SIGTERM).
    """

    def __init__(self, trainer, star, ranks, tasks, names: list[str], bar, signals):
        super().__init__(trainer, star, ranks, tasks)
        self.names, self.bar, self.signals = names, bar, signals
        self.since = time.perf_counter()
        self.saved_at = trainer.steps

    # The interface of Hub

    @property
    def updates(self) -> int:
        return self.trainer.steps

    @property
    def stopping(self) -> bool:
        return self.trainer.stopped is not None or bool(self.signals)

    def stepped(self, steps, samples, loss_sum) -> None:
        trainer = self.trainer
        trainer.steps += steps
        if trainer.schedule is not None:
            self.rule.set_rate(trainer.schedule(trainer.steps), trainer.correct_momentum)
        self.bar.update(int(samples))
        for callback in trainer.callbacks:
            callback.on_step_end(trainer, loss_sum / samples if samples else 0.0, int(samples))

    def order_for(self, leaf: int) -> list[float] | None:
        if self.final is not None:
            return [Order.DONE]
        task = self.tasks.next(leaf)
        return None if task is None else [Order.TRAIN, *task.words()]

    def between(self) -> None:
        if self.rule.synchronous and self.round_is_complete():
            self.serve_round()
        for epoch in self.complete():
            self._end_epoch(epoch)
        self.end_validations()
        if self.tasks is not None:
            self.tasks.stopped = self.tasks.stopped or self.stopping
        self._save_if_due()
        if self.rule.synchronous and self.tasks is not None:
            self.tasks.begin()

    def round_is_complete(self) -> bool:
        """Synchronous rules: whether the vectors of all participants have arrived."""
        return bool(self.round) and self.tasks.between

    def complete(self) -> list[int]:
        """Epochs that are now complete; each is returned once."""
        return self.tasks.complete()

    @property
    def over(self) -> bool:
        """Whether all work is done."""
        return self.tasks.over and not self.round

    @property
    def validators(self) -> int:
        """Number of leaves that can validate."""
        return len(self.open)

    # Epochs

    def run(self) -> None:
        """Serve all requests of the run, except for the final message (`end`)."""
        if self.rule.synchronous and self.tasks is not None:
            self.tasks.begin()
        self.serve(lambda: self.over and not self.validations)

    def _end_epoch(self, epoch: int) -> None:
        """All updates of the epoch are in the weights: start their validation."""
        sums = self.sums.pop(epoch, None)
        if sums is None or not sums["samples"]:
            return
        now = time.perf_counter()
        row = {"loss": sums["loss"] / sums["samples"], "samples": sums["samples"]}
        row["seconds"] = now - self.since + sums.get("seconds", 0.0)
        if sums["updates"]:
            row["staleness"] = sums["staleness"] / sums["updates"]
        self.since = now
        self.validate(epoch, row)

    def validate(self, epoch: int, row: dict) -> None:
        """Start to validate the present weights; `row`: other columns of the epoch's row."""
        parts = max(1, self.validators)
        one = Validation(epoch, self.weights.copy(), self.mean_state(), range(parts), parts)
        one.row = row
        self.validations.append(one)

    def validated(self, validation: Validation) -> None:
        """Append the epoch's row to the history, and call callbacks."""
        trainer = self.trainer
        samples, *sums = validation.total()[: 1 + len(self.names)]
        metrics = {n: float(s / samples) for n, s in zip(self.names, sums, strict=True)}
        if not np.isfinite(metrics["loss"]):
            raise NotFinite(
                f"the validation loss is {metrics['loss']} after epoch {validation.epoch + 1}; use "
                f"a learning rate below {self.rule.optimizer.learning_rate}, or data without NaN"
            )
        of_it = validation.row
        row = (
            {"epoch": validation.epoch + 1, "loss": of_it["loss"]}
            | {f"val_{name}": value for name, value in metrics.items()}
            | {"samples_per_second": of_it["samples"] / of_it["seconds"]}
            | {"seconds": of_it["seconds"]}
        )
        if trainer.schedule is not None:
            row["learning_rate"] = self.rule.optimizer.learning_rate
        if "staleness" in of_it:
            row["staleness"] = of_it["staleness"]
        trainer.history.epochs.append(row)
        shown = {"loss": row["loss"]} | {f"val_{name}": v for name, v in metrics.items()}
        self.bar.set_postfix({n: f"{value:.4f}" for n, value in shown.items()}, refresh=False)
        # Callbacks use the trainer's model, so give it the validated weights.
        self.show(validation.weights, validation.state)
        for callback in trainer.callbacks:
            callback.on_epoch_end(trainer, row)
        if trainer.saving is not None and not self.validations:
            self.save()

    # Checkpoints

    def undone(self) -> list[dict]:
        """The work not done in the begun epochs, for a checkpoint."""
        return self.tasks.save()

    def _save_if_due(self) -> None:
        saving, steps = self.trainer.saving, self.trainer.steps
        if saving is None or saving.every is None or self.validations:
            return
        if steps // saving.every > self.saved_at // saving.every:
            self.save()

    def save(self):
        """Write a checkpoint; returns its path."""
        self.saved_at = self.trainer.steps
        return write(self)

    def tell_history(self) -> None:
        """Add this master's counts to the history."""
        history = self.trainer.history
        history.staleness.update(self.staleness)
        history.workers.update(self.shares)
        history.lost += self.lost
        self.staleness.clear(), self.shares.clear(), self.lost.clear()
