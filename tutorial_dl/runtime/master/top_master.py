"""`TopMaster`: also keeps the history, has weights validated, saves, and ends the run.

With sub-masters below it, it is a HierarchicalMaster (hierarchical_master.py).
"""

from ...replica.base import assign, metrics_of
from ..evaluation import Sums
from .master import Master
from .validation import Validation


class TopMaster(Master):
    """The top master of workers; `measures` is how workers send what they measure."""

    def __init__(self, loop, star, ranks, tasks, measures: Sums, bar, signals):
        super().__init__(loop, star, ranks, tasks)
        self.measures, self.bar, self.signals = measures, bar, signals
        self.since = self.run.clock.now()
        self.saved_at = self.run.steps

    @property
    def updates(self) -> int:
        return self.run.steps

    @property
    def stopping(self) -> bool:
        return self.run.stopped is not None or bool(self.signals)

    def stepped(self, steps, samples, loss_sum) -> None:
        self.run.steps += steps
        self.run.set_rate(self.run.steps)
        self.bar.update(int(samples))
        self.run.notify("on_step_end", loss_sum / samples if samples else 0.0, int(samples))

    def between(self) -> None:
        if self.round_is_complete():
            self.serve_round()
        for epoch in self.tasks.complete():
            self._end_epoch(epoch)
        self.end_validations()
        saving = self.run.saving
        if saving is not None and not self.validations and saving.due(self.saved_at):
            self.save()
        self.begin_tasks()

    @property
    def validators(self) -> int:
        return len(self.open)

    # Epochs

    def lead(self) -> None:
        """Serve all requests of the run, except for the final message (`end`)."""
        self.tasks.begin()
        self.serve(lambda: self.over and not self.validations)

    def _end_epoch(self, epoch: int) -> None:
        """All updates of the epoch are in the weights: start their validation."""
        sums = self.sums.pop(epoch, None)
        if sums is None or not sums["samples"]:
            return
        now = self.run.clock.now()
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
        metrics = metrics_of(self.run.replica, self.measures.by_name(validation.total()))
        more = dict(validation.row)
        losses = {"loss": more.pop("loss")}
        row = self.run.end_epoch(self.bar, validation.epoch, losses, metrics, **more)
        # Callbacks use the trainer's model, so give it the validated weights.
        assign(self.run.replica, validation.weights, validation.state)
        self.run.notify("on_epoch_end", row)
        if self.run.saving is not None and not self.validations:
            self.save()

    # Checkpoints

    def save(self):
        self.saved_at = self.run.steps
        return self.run.saving.write(self)

    def tell_history(self) -> None:
        history = self.run.history
        history.staleness.update(self.staleness)
        history.workers.update(self.shares)
        history.lost += self.lost
        self.staleness.clear(), self.shares.clear(), self.lost.clear()
