"""Strategy: what is asked of every strategy; OneModel: the base of those in which all ranks hold
the same model. Strategies with a master derive from Rule (rule.py).
"""

import re

import numpy as np

from numba_kernels.optimizers import Optimizer
from numba_kernels.spans import span

from ..replica.base import Batch, Replica, TrainedBy, finite_gradient


class Strategy:
    """What both loops, checkpoints and results ask of every strategy.

    OneModel and Rule have `save` and `restore` of their own: a master writes checkpoints alone.
    """

    default_optimizer = "adam"  # used if none is given
    updates_a_step = 1  # that all ranks together make
    optimizer: Optimizer | None = None  # with the present learning rate
    state = None  # the optimizer's, on ranks that have one
    loss_scale = None  # a LossScale (loss_scale.py) if the model computes in float16
    compression = None  # the Method (numba_kernels.compression) by which gradients are sent
    shares_batches = True  # whether several ranks compute parts of each batch
    two_steps = False  # whether an allreduce of the whole gradient comes before the update
    one_copy = False  # whether the ranks of a node use one copy of the weights
    first = 0  # where this rank's vectors begin in those of the whole model
    takes_parts = False  # whether ranks may share batches, and yet hold parts of the model
    saved_as: str | None = None  # by which name checkpoints know it; None: its class's
    _team = None

    def __init__(self, team=None):
        self.join(team)

    @property
    def name(self) -> str:
        """In words: "elastic averaging"."""
        return re.sub("(?<=[a-z])(?=[A-Z])", " ", type(self).__name__).lower()

    @property
    def team(self):
        """The ranks that train; if none were given, all: the first use is then collective."""
        if self._team is None:
            from numba_kernels.team.team import Team  # Scripted needs no MPI

            self.join(Team())
        return self._team

    def join(self, team) -> None:
        """Train on the ranks of `team` (None: not known yet), unless others were given before."""
        if self._team is None and team is not None:
            self.check_team(team)
            self._team = team

    @property
    def copies(self):
        """The ranks that hold what this rank holds: by default, all."""
        return self.team

    @property
    def sharers(self):
        """The ranks among which the samples of each batch are divided: by default, `copies`."""
        return self.copies

    def slices(self, n: int) -> list[tuple[int, int]]:
        """[first, last) of the vectors, of `n` elements, that each rank writes to checkpoints."""
        return [self.team.slice_of(n, rank) for rank in range(self.team.size)]

    def to_checkpoint(self, vector: np.ndarray) -> np.ndarray:
        """What this rank writes of a vector like the replica's, equal on all copies. Collective."""
        return vector[slice(*self.copies.slice_of(vector.size))]

    def from_checkpoint(self, saved, name: str, n: int) -> np.ndarray:
        """The reverse: this rank's vector, of n elements, from a checkpoint's Snapshot."""
        return saved.vector(name, self.first, self.first + n)

    def check_team(self, team) -> None:
        """Raise ValueError if this strategy can't train on the ranks of `team`."""

    def check_replica(self, replica: Replica) -> None:
        """Raise ValueError if this strategy can't train this replica."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise ValueError if this strategy can't train with `optimizer`."""
        if optimizer.undivided:
            raise ValueError(
                f"{self.name} needs an optimizer with a kernel; 'synchronous' takes "
                f"{optimizer.in_words}"
            )

    def total(self, sums: np.ndarray) -> np.ndarray:
        """From each rank's sums of what `step` returned, the sums over all samples. Collective."""
        return sums

    def updates_an_epoch(self, samples: int, batch_size: int) -> int:
        """The number of updates in an epoch of `samples` samples; schedules count in updates."""
        at_once = self.updates_a_step
        return -(-samples // (batch_size * at_once)) * at_once

    def trained_by(self) -> TrainedBy:
        """The optimizer and, on rank 0, its state for all weights; for a file with the model.

        Ranks in step call it together; with a master, rank 0 may call it alone.
        """
        state = self.state
        if state is None:
            return TrainedBy(self.optimizer, None, 0)
        return TrainedBy(self.optimizer, state.slots, state.step)

    def set_rate(self, rate: float, correct_momentum: bool = True) -> None:
        """Use learning rate `rate`, equal on all ranks, from the next step on.

        With `correct_momentum` the velocity is scaled too, see `Optimizer.at_rate`.
        """
        if rate != self.optimizer.learning_rate:
            state = self.state if correct_momentum else None
            self.optimizer = self.optimizer.at_rate(rate, state)


class OneModel(Strategy):
    """Base class: what InStepLoop asks for, loss scaling, and the contents of a checkpoint.

    After `attach`, a subclass has `replica` and `update`. `update` does the last part of a step; it
    has the `optimizer`, its `state`, and `mine`, the slice of the parameters that `state` covers.
    All ranks call each method, and `step` equally often.
    """

    replica: Replica
    _seen = 0  # samples that this rank has used since its state was last averaged

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        """Before the first step: put the replica's vectors where this strategy needs them."""
        raise NotImplementedError

    def step(self, batch: Batch) -> tuple[float, int]:
        """One update with this rank's share of a batch, which may be empty.

        Returns the mean loss over all ranks' samples, and their number; where each rank makes an
        update of its own, over its own samples (see `total`).
        """
        return self.end(*self.begin(batch))

    def begin(self, batch: Batch) -> tuple[float, int]:
        """The first part of a step: this rank's gradient; returns (mean loss, samples)."""
        with span("gradient"):
            return self.gradient(batch)

    def end(self, loss: float, samples: int) -> tuple[float, int]:
        """The other part, from what `begin` returned: reduce and update; returns as `step` does."""
        return self.skipped(loss, samples) or self.constrained(self.update(loss, samples))

    def resume(self) -> None:
        """After a failure: make all ranks agree again. (One rank agrees with itself.)"""

    def gradient(self, batch: Batch, **options) -> tuple[float, int]:
        """Compute this rank's gradient of a step; returns (mean loss, samples). See `skipped`."""
        if self.loss_scale is None:
            return finite_gradient(self.replica, batch, **options)
        loss, samples, self._finite = self.loss_scale.gradient(self.replica, batch, **options)
        return loss, samples

    def skipped(self, loss: float, samples: int) -> tuple[float, int] | None:
        """Decide, after `gradient`, whether all ranks skip this step. Collective.

        Returns None if they do not. If some rank's gradient has overflowed, it returns what the
        step returns instead: the mean loss over the ranks where it is finite, and their number of
        samples.
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

    def constrained(self, done: tuple[float, int]) -> tuple[float, int]:
        """After an update: keep the weights within the model's constraints; returns `done`."""
        if self.replica.constrained:
            self.replica.constrain(self.replica.parameters)
        return done

    state = property(lambda self: self.update.state)
    optimizer = property(
        lambda self: self.update.optimizer, lambda self, one: setattr(self.update, "optimizer", one)
    )

    def trained_by(self) -> TrainedBy:
        n, mine, slots = self.replica.parameters.size, self.update.mine, self.state.slots
        if mine != slice(0, n):
            # Only rank 0 holds the whole state; the others need one vector at a time.
            first = self.team.rank == 0
            whole = np.empty((len(slots) if first else 1, n), slots.dtype)
            for number, part in enumerate(slots):
                row = whole[number if first else 0]
                row[:] = 0
                row[mine] = part
                self.team.allreduce(row, "sum")  # of slices that do not overlap
            slots = whole
        return TrainedBy(self.optimizer, slots, self.state.step)

    def share_state(self) -> None:
        """Give all ranks the statistics of rank 0. Collective."""
        if self.replica.state.size:
            self.replica.state = self.team.broadcast(self.replica.state.copy())
        self._seen = 0

    def average_state(self) -> None:
        """Average what is not optimised (moving statistics) over ranks, weighted by samples."""
        if self.replica.state.size and self.copies.size > 1:
            # In float64, so that the average of equal values is that value, bit for bit.
            state = self.replica.state.astype(np.float64)
            weighted = np.append(state * self._seen, self._seen)
            self.copies.allreduce(weighted)  # sums
            if weighted[-1]:
                self.replica.state = (weighted[:-1] / weighted[-1]).astype(self.replica.state.dtype)
        self._seen = 0

    def settle(self) -> None:
        """Wait until no rank changes the weights any more, before they are read. Collective."""

    # Checkpoints: vectors that are equal on all ranks are written in slices, one slice per rank;
    # what differs is written whole by each rank

    def save(self) -> tuple[dict, dict, dict]:
        """(values, vectors, own): numbers, slices of common vectors, what only this rank has."""
        n, update = self.replica.parameters.size, self.update
        first, last = self.copies.slice_of(n)
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
        """Continue from a Snapshot (checkpoint/format.py), also one of more or fewer ranks."""
        update, first = self.update, self.first
        last = first + self.replica.parameters.size
        self.replica.parameters[:] = saved.vector("parameters", first, last)
        mine = first + update.mine.start, first + update.mine.stop
        update.state.slots[:] = saved.vector("slots", *mine)
        values = saved.values["strategy"]
        update.state.step = values["updates"]
        self.restore_numbers(values)
        self.restore_state(saved)

    def restore_state(self, saved) -> None:
        """The part of `restore` that reads what is not optimised."""
        seen = [int(saved.own("seen", rank)[0]) for rank in range(saved.ranks)]
        if saved.ranks == self.team.size:
            state, self._seen = saved.own("state", self.team.rank), seen[self.team.rank]
        else:  # average as `average_state` would have done at that time
            states = [saved.own("state", rank).astype(np.float64) for rank in range(saved.ranks)]
            weights = seen if sum(seen) else [1] * len(seen)
            state, self._seen = np.average(states, axis=0, weights=weights), 0
        if self.replica.state.size:
            self.replica.state = state.astype(self.replica.state.dtype)

    def restore_numbers(self, values: dict) -> None:
        self.set_rate(values["rate"], correct_momentum=False)  # that of the saved velocity
        if self.loss_scale is not None and "loss_scale" in values:
            self.loss_scale.values = values["loss_scale"]
