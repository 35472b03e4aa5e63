"""Strategy: what is asked of every strategy; OneModel: the base of those in which all ranks hold
the same model. Strategies with a master derive from Rule (rule.py).
"""

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any

import numpy as np

from numba_kernels.optimizers import Optimizer
from numba_kernels.spans import span

from ..replica.base import Batch, LossNotFinite, Replica, TrainedBy, gradient_is_finite
from ..replica.consistency import check_same_weights
from ..replica.holding import Holding


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
    noise = None  # the NoiseScale that measures critical batch sizes
    two_steps = False  # whether an allreduce of the whole gradient comes before the update
    one_copy = False  # whether the ranks of a node use one copy of the weights
    alike = True  # whether all copies have equal weights now
    layout = None  # the Layout that was asked for
    settings: Mapping[str, Any] = MappingProxyType({})  # equal on all ranks, and in a resumed run
    holding: Holding | None = None  # what this rank holds of the model, once it is known (`take`)
    shown = False  # whether the weights are those to validate and to save (`show`)
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
        """The ranks that hold what this rank holds."""
        return self.holding.copies if self.holding else self.team

    @property
    def sharers(self):
        """The ranks among which the samples of each batch are divided."""
        return self.holding.sharers if self.holding else self.team

    def check_team(self, team) -> None:
        """Raise ValueError if this strategy can't train on the ranks of `team`."""

    @property
    def apart(self) -> int:
        """How many ranks, or groups of ranks, make updates of their own; see `total`."""
        return self.updates_a_step

    @property
    def ranks_a_sample(self) -> int:
        """How many ranks compute a sample together: parts of a model, or of a sequence."""
        return self.team.size // self.sharers.size

    def take(self, replica: Replica) -> None:
        """Before training: find out what this rank holds of the model; the others do likewise.

        Raises ValueError if this strategy can't train this replica.
        """
        if replica.holding is not None:
            raise ValueError(
                f"strategy {self.name!r} takes whole models and samples, and here ranks have parts "
                f"of them ({replica.holding.words}): use strategy 'synchronous'"
            )
        self.holding = Holding.of_all(replica.segments, replica.parameters.size, self.team)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise ValueError if this strategy can't train with `optimizer`."""
        if optimizer.undivided:
            raise ValueError(
                f"{self.name} needs an optimizer with a kernel, got {optimizer.in_words}: choose "
                "one with --optimizer, or use strategy 'synchronous'"
            )
        if optimizer.shows:
            raise ValueError(
                f"{self.name} can't train with {optimizer.in_words}, since it validates the "
                "weights that it trains: use strategy 'synchronous'"
            )

    def show(self, shown: bool, ends: bool = False) -> None:
        """Have the weights that are to be validated and saved, or those that are trained, again.

        `ends`: whether training ends; a rule may show others only then. Collective.
        """

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
        before = self.optimizer
        if rate != before.learning_rate:
            for state in self.states if correct_momentum else ():
                before.at_rate(rate, state)  # scales its velocity
            self.optimizer = before.at_rate(rate)

    @property
    def states(self) -> list:
        """The optimizer's states on this rank: one, or none, or one for each part of a model."""
        return [] if self.state is None else [self.state]


class OneModel(Strategy):
    """Base class: what InStepLoop asks for, loss scaling, and the contents of a checkpoint.

    After `attach`, a subclass has `replica` and `update`. `update` does the last part of a step; it
    has the `optimizer`, its `state`, and `mine`, the slice of the gradient that `state` covers.
    All ranks call each method, and `step` equally often.
    """

    replica: Replica
    group = property(lambda self: self.team)  # the ranks that make each update together
    _seen = 0  # samples that this rank has used since its state was last averaged
    _options: Mapping[str, Any] = MappingProxyType({})  # of the replica's compute_gradient

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
            loss, samples, self._finite = finite_gradient(
                self.replica, batch, self.loss_scale, **self._options
            )
        self._seen += samples
        return loss, samples

    def end(self, loss: float, samples: int) -> tuple[float, int]:
        """The other part, from what `begin` returned: reduce and update; returns as `step` does."""
        replica = self.replica
        if self.loss_scale is not None and (skipped := self.skipped(loss, samples)) is not None:
            return skipped
        if self._options:
            self.update.own, self.update.factor = replica.own, replica.own_factor
        loss, samples = self.update(loss, samples)
        if replica.traits.constrained:
            replica.constrain(replica.parameters)
        # Ranks that compute a sample together have counted it once each.
        return loss, samples * self.sharers.size // self.copies.size

    def show(self, shown: bool, ends: bool = False) -> None:
        shows = self.optimizer.shows
        if shows and shown != self.shown and (not shown or ends or shows == "always"):
            if self.copies.size > 1:
                self.copies.barrier()  # no rank computes with the weights any more
            self.shown = shown  # also if another rank fails now: this one turns its own weights
            self.update.show(shown, turn=True)

    def resume(self) -> None:
        """After a failure: make all ranks agree again. (One rank agrees with itself.)"""

    def skipped(self, loss: float, samples: int) -> tuple[float, int] | None:
        """With a loss scale, decide whether all ranks skip this step. Collective.

        Returns None if they do not. If some rank's gradient has overflowed, it returns what the
        step returns instead: the mean loss over the ranks where it is finite, and their number of
        samples.
        """
        samples = samples if np.isfinite(loss) else 0
        sums = np.array([not self._finite, samples, samples * loss if samples else 0.0], float)
        overflows, samples, loss = self.group.allreduce(sums) if self.group.size > 1 else sums
        self.loss_scale.update(finite=not overflows)
        if not overflows:
            return None
        once = int(samples) * self.sharers.size // self.team.size
        return (float(loss / samples) if samples else 0.0), once

    state = property(lambda self: self.update.state)
    states = property(lambda self: self.update.states if self.holding.stage else [self.state])
    optimizer = property(
        lambda self: self.update.optimizer, lambda self, one: setattr(self.update, "optimizer", one)
    )

    def trained_by(self) -> TrainedBy:
        holding, slots = self.holding.of_gradient, self.state.slots
        if not (holding.complete and self.update.mine == slice(0, holding.size)):
            # Only rank 0 holds the whole state; the others need one vector at a time.
            size = holding.size if self.team.rank == 0 else 0
            slots = np.empty((self.optimizer.slots, size), self.replica.parameters.dtype)
            for whole, row in zip(slots, self._rows(), strict=True):
                whole[:] = holding.joined(row, 0, size)
        return TrainedBy(self.optimizer, slots, self.state.step)

    def _rows(self) -> Iterator[np.ndarray]:
        """The optimizer's running averages, one after the other, for all of this rank's gradient.

        Collective over `copies`.
        """
        if self.holding.stage:
            yield from self.update.rows()
            return
        n, mine, slots = self.replica.gradient.size, self.update.mine, self.state.slots
        for part in slots:
            if mine == slice(0, n):
                yield part
                continue
            row = np.zeros(n, slots.dtype)
            row[mine] = part
            self.copies.allreduce(row)  # of slices that do not overlap
            yield row

    def share_state(self) -> None:
        """Give all copies the statistics of the first one. Collective."""
        if self.replica.state.size:
            self.replica.state = self.copies.broadcast(self.replica.state.copy())
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
        """Wait until no rank changes the weights any more, before they are read. Collective.

        Raises DriftError unless ranks that hold parts of layers agree on what is not cut.
        """
        if self.holding.tensor is not None:
            alike = [part.here for part in self.holding.mine if part.alike]
            check_same_weights(self.holding.tensor, self.replica, alike)

    # Checkpoints have the vectors of the whole model, a stretch from each rank; each rank writes
    # all of what differs between ranks

    def save(self) -> tuple[dict, dict, dict]:
        """(values, vectors, own): numbers, stretches of vectors, what only this rank has."""
        holding, state = self.holding, self.state
        first, last = self.team.slice_of(holding.size)
        slots = holding.of_gradient
        if slots.complete and not self.optimizer.whole:  # each rank has the state of its stretch
            low = first - self.update.mine.start
            rows = state.slots[:, low : low + last - first]
        else:
            rows = np.empty((self.optimizer.slots, last - first), self.replica.parameters.dtype)
            for row, part in zip(rows, self._rows(), strict=True):
                row[:] = slots.joined(part, first, last)
        vectors = {
            "parameters": holding.joined(self.replica.parameters, first, last), "slots": rows
        }  # fmt: skip
        own = {"state": self.replica.state, "seen": np.array([self._seen])}
        values = {"updates": state.step, "rate": self.optimizer.learning_rate}
        if self.loss_scale is not None:
            values["loss_scale"] = self.loss_scale.values
        if self.noise is not None:
            values["noise"] = self.noise.sums.tolist()
        return values, vectors, own

    def restore(self, saved) -> None:
        """Continue from a Snapshot (checkpoint/format.py), also one of other ranks and parts."""
        holding, update, state = self.holding, self.update, self.state
        values, self.shown = saved.values["strategy"], False
        holding.take(lambda *part: saved.vector("parameters", *part), self.replica.parameters)
        slots = holding.of_gradient
        if slots.complete:
            state.slots[:] = saved.vector("slots", update.mine.start, update.mine.stop)
        else:
            like = self.replica.gradient
            rows = np.zeros((self.optimizer.slots, like.size), like.dtype)
            slots.take(lambda *part: saved.vector("slots", *part), rows)
            if holding.stage:
                update.take_rows(rows, values["updates"])
            else:
                state.slots[:] = rows[:, update.mine]
        state.step = values["updates"]
        self.restore_numbers(values)
        self.restore_state(saved)

    def save_own(self, values: dict, vectors: dict) -> dict:
        """Take out of `save` what differs where ranks make updates of their own; returns it."""
        del vectors["slots"]
        own = {"slots": self.state.slots, "updates": np.array([values.pop("updates")])}
        if "loss_scale" in values:
            own["loss_scale"] = np.array(values.pop("loss_scale"))
        return own

    def restore_own(self, saved) -> None:
        """The part of `restore` that reads what `save_own` took out, on equally many ranks."""
        state, of = self.state, self.team.rank
        state.slots[:], state.step = saved.own("slots", of), int(saved.own("updates", of)[0])
        self.restore_numbers(saved.values["strategy"])
        if self.loss_scale is not None and saved.has_own("loss_scale"):  # (else: rank 0's)
            self.loss_scale.values = saved.own("loss_scale", of)
        self.restore_state(saved)

    def restore_state(self, saved) -> None:
        """The part of `restore` that reads what is not optimised."""
        seen = [int(saved.own("seen", rank)[0]) for rank in range(saved.ranks)]
        together = saved.values.get("computing_a_sample", 1)
        if (saved.ranks, together) == (self.team.size, self.ranks_a_sample):
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
        if self.noise is not None and "noise" in values:
            self.noise.sums[:] = values["noise"]


def finite_gradient(replica: Replica, batch: Batch, scale: Any = None, **options) -> tuple:
    """Call `compute_gradient(batch, **options)`; returns (mean loss, samples, whether finite).

    Every rank checks before anything is exchanged: one rank's NaN must not reach all weights, and
    afterwards its origin could no longer be found. What is not finite raises FloatingPointError,
    except with a dynamic LossScale `scale` (loss_scale.py).
    """
    if scale is not None:
        replica.loss_scale = scale.scale
    loss, samples = replica.compute_gradient(batch, **options)
    if isfinite(loss) and gradient_is_finite(replica):
        return loss, samples, True
    if scale is None and not isfinite(loss):
        raise LossNotFinite(f"the loss is {loss}")
    if scale is None or not scale.dynamic:
        at = "" if scale is None else f" at a loss scale of {scale.scale}"
        raise FloatingPointError(f"the gradient is not finite{at}")
    return loss, samples, False
