"""The master at the top: it also keeps the history, has weights validated, saves, and ends.

Of sub-masters: see TopOfGroups (groups.py).
"""

from __future__ import annotations

import time

import numpy as np

from ..training.errors import NotFinite
from .hub import Hub
from .saving import write
from .validation import Validation
from .words import Order


class Top(Hub):
    """Of workers.

    Args:
        names: Of the metrics that workers send.
        bar: Of progress.
        signals: Becomes non-empty when the run is to be ended (SIGTERM).
    """

    def __init__(self, trainer, star, ranks, tasks, names: list[str], bar, signals):
        super().__init__(trainer, star, ranks, tasks)
        self.names, self.bar, self.signals = names, bar, signals
        self.since = time.perf_counter()
        self.saved_at = trainer.steps

    # What masters differ in

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
        """Of the synchronous form: all that take part are here."""
        return bool(self.round) and self.tasks.between

    def complete(self) -> list[int]:
        """Epochs of which all is done; told once."""
        return self.tasks.complete()

    @property
    def over(self) -> bool:
        """No work is being done, nor will be."""
        return self.tasks.over and not self.round

    @property
    def validators(self) -> int:
        """How many may validate."""
        return len(self.open)

    # Epochs

    def run(self) -> None:
        """From the first request to the last, without the last word (`end`)."""
        if self.rule.synchronous and self.tasks is not None:
            self.tasks.begin()
        self.serve(lambda: self.over and not self.validations)

    def _end_epoch(self, epoch: int) -> None:
        """All of its updates are in the weights: what they are now is to be validated."""
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
        """Have the weights as they are validated; `row`: what else is known of the epoch."""
        parts = max(1, self.validators)
        one = Validation(epoch, self.weights.copy(), self.mean_state(), range(parts), parts)
        one.row = row
        self.validations.append(one)

    def validated(self, validation: Validation) -> None:
        """The row of the history, and whoever wants to see it."""
        trainer = self.trainer
        samples, *sums = validation.total()[: 1 + len(self.names)]
        metrics = {n: float(s / samples) for n, s in zip(self.names, sums, strict=True)}
        if not np.isfinite(metrics["loss"]):
            raise NotFinite(
                f"the validation loss is {metrics['loss']} after epoch {validation.epoch + 1}; a "
                f"learning rate below {self.rule.optimizer.learning_rate}, or data without NaN, "
                "is needed"
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
        # Callbacks look at the trainer's model: it is what was validated.
        self.show(validation.weights, validation.state)
        for callback in trainer.callbacks:
            callback.on_epoch_end(trainer, row)
        if trainer.saving is not None and not self.validations:
            self.save()

    # Checkpoints

    def undone(self) -> list[dict]:
        """Of the epochs that have been begun."""
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
        """What was counted here."""
        history = self.trainer.history
        history.staleness.update(self.staleness)
        history.workers.update(self.shares)
        history.lost += self.lost
        self.staleness.clear(), self.shares.clear(), self.lost.clear()
