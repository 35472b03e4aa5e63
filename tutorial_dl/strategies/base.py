"""What strategies share in which all ranks hold one and the same model."""

from __future__ import annotations

import numpy as np

from ..replica.base import Batch, Replica, finite_gradient


class OneModel:
    """Base class: learning rates that change, and what a checkpoint holds.

    A subclass has, once attached, `replica` and `update`: the rule's last step, with its
    `optimizer`, that one's `state`, and `mine`, the slice of the parameters that `state` is of.
    """

    replica: Replica
    default_optimizer = "adam"
    _seen = 0  # samples of this rank since its state was averaged
    updates_a_step = 1  # of all ranks together
    loss_scale = None  # a LossScale (training/loss_scale.py), where a model computes in float16

    def gradient(self, batch: Batch, **options) -> tuple[float, int]:
        """This rank's part of a step: fills the gradient; mean loss, samples. See `skipped`."""
        if self.loss_scale is None:
            return finite_gradient(self.replica, batch, **options)
        loss, samples, self._finite = self.loss_scale.gradient(self.replica, batch, **options)
        return loss, samples

    def skipped(self, loss: float, samples: int) -> tuple[float, int] | None:
        """After `gradient`: None if the step can be done on all ranks. Collective.

        Otherwise some rank's gradient has overflowed, and this is what the step is to return: the
        mean loss over all samples where it is finite, and how many those are.
        """
        if self.loss_scale is None:
            return None
        samples = samples if np.isfinite(loss) else 0
        sums = np.array([not self._finite, samples, samples * loss if samples else 0.0], float)
        overflows, samples, loss = self.team.allreduce(sums) if self.team.size > 1 else sums
        self.loss_scale.update(finite=not overflows)
        if not overflows:
            return None
        return (float(loss / samples) if samples else 0.0), int(samples)

    def updates_an_epoch(self, samples: int, batch_size: int) -> int:
        """How many updates an epoch of so many samples takes: what schedules count."""
        at_once = self.updates_a_step
        return -(-samples // (batch_size * at_once)) * at_once

    @property
    def optimizer(self):
        """The rule, with the learning rate of the next step."""
        return self.update.optimizer

    def set_rate(self, rate: float, correct_momentum: bool = True) -> None:
        """Learn at `rate` from the next step on; the same on all ranks. See Optimizer.at_rate."""
        if rate != self.update.optimizer.learning_rate:
            state = self.update.state if correct_momentum else None
            self.update.optimizer = self.update.optimizer.at_rate(rate, state)

    def agree_on_scale(self) -> None:
        """After a failure: rank 0's loss scale on all ranks. Collective."""
        if self.loss_scale is not None and self.team.size > 1:
            self.loss_scale.values = self.team.broadcast(np.array(self.loss_scale.values))

    def average_state(self) -> None:
        """Average what is not optimised (moving statistics), weighted by the samples seen."""
        if self.replica.state.size and self.team.size > 1:
            # In float64: equal values are their own average, to the bit.
            state = self.replica.state.astype(np.float64)
            weighted = np.append(state * self._seen, self._seen)
            self.team.allreduce(weighted)  # sums
            if weighted[-1]:
                self.replica.state = (weighted[:-1] / weighted[-1]).astype(self.replica.state.dtype)
        self._seen = 0

    def settle(self) -> None:
        """Before weights are looked at: nobody changes them. Collective."""

    def total(self, sums: np.ndarray) -> np.ndarray:
        """Of what `step` returned, added up by each rank: the sums over all samples. Collective."""
        return sums

    # Checkpoints: what is equal on all ranks is written in slices, the rest by each rank

    def save(self) -> tuple[dict, dict, dict]:
        """(values, vectors, own): numbers; this rank's slices of vectors; what only it has."""
        n, update = self.replica.parameters.size, self.update
        first, last = self.team.slice_of(n)
        low = first - update.mine.start
        vectors = {
            "parameters": self.replica.parameters[first:last],
            "slots": update.state.slots[:, low : low + last - first],
        }
        own = {"state": self.replica.state, "seen": np.array([self._seen])}
        values = {"updates": update.state.step, "rate": update.optimizer.learning_rate}
        if self.loss_scale is not None:
            values["loss_scale"] = self.loss_scale.values
        return values, vectors, own

    def restore(self, saved) -> None:
        """Go on from a Snapshot (training/checkpoint.py), also of another number of ranks."""
        update = self.update
        self.replica.parameters[:] = saved.vector("parameters", 0, self.replica.parameters.size)
        update.state.slots[:] = saved.vector("slots", update.mine.start, update.mine.stop)
        values = saved.values["strategy"]
        update.state.step = values["updates"]
        self.set_rate(values["rate"], correct_momentum=False)  # its velocity is of this rate
        if self.loss_scale is not None and "loss_scale" in values:
            self.loss_scale.values = values["loss_scale"]
        seen = [int(saved.own("seen", rank)[0]) for rank in range(saved.ranks)]
        if saved.ranks == self.team.size:
            state, self._seen = saved.own("state", self.team.rank), seen[self.team.rank]
        else:  # as `average_state` would, had it been called then
            states = [saved.own("state", rank).astype(np.float64) for rank in range(saved.ranks)]
            weights = seen if sum(seen) else [1] * len(seen)
            state, self._seen = np.average(states, axis=0, weights=weights), 0
        if self.replica.state.size:
            self.replica.state = state.astype(self.replica.state.dtype)
