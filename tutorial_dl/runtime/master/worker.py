"""`Worker`: fetch a task, train on it by the rule, exchange with the master; sometimes validate.

A worker may have several ranks, which compute the gradient of each batch together. The first of
them, the leader, is the only one that exchanges with the master.
"""

from contextlib import closing, suppress

import numpy as np

from numba_kernels.errors import numbered
from numba_kernels.optimizers.clipping import clip_by_norm
from numba_kernels.spans import span

from ...data import Batches, shard
from ...replica.base import LossNotFinite, assign, measure
from ...strategies.base import finite_gradient
from ..evaluation import Sums
from .client import Client
from .messages import Answer, Kind, NotFiniteAt, Order, Report, flat
from .tasks import Task, TaskBatches
from .validation import Evaluated, Part

WORDS = 14  # length of a leader's message to its members, an Answer


class Computing:
    """Gradients and metrics of a batch, computed by all ranks of a worker together (`team`)."""

    def __init__(self, run, stars, sums: Sums, team=None):
        self.run, self.replica, self.sums, self.team = run, run.replica, sums, team
        device, devices = (0, 1) if team is None else (team.rank, team.size)
        self.ranks = stars.mate_ranks  # of this worker, as the run numbers them
        order = {"seed": run.batches.seed, "shuffle": run.batches.shuffle}
        self.items = TaskBatches(run.dataset.train, device=device, devices=devices, **order)
        self.loss_scale = run.strategy.loss_scale

    def gradient(self, task: Task, number: int) -> tuple[float, int, bool]:
        """Compute a batch's gradient; return (mean loss, samples, whether the gradient is finite).

        Without a dynamic loss scale it raises FloatingPointError if it is not.
        """
        if self.team is None:
            return self._own_gradient(task, number)
        with numbered(self.ranks):
            if number == 0:
                self._tell(Answer(Order.TRAIN, about=task))
            return self._together(task, number)

    def _together(self, task: Task, number: int) -> tuple[float, int, bool]:
        self.team.broadcast(self.replica.parameters)
        bad = False, False  # the loss, the gradient
        try:
            loss, samples, finite = self._own_gradient(task, number)
        except FloatingPointError as error:  # sent to all members, and raised below
            loss, samples, finite = 0.0, 0, False
            bad = isinstance(error, LossNotFinite), not isinstance(error, LossNotFinite)
        sums = np.array([samples, samples * loss if samples else 0.0, not finite, *bad], np.float64)
        total, loss, overflows, bad_loss, bad_gradient = self.team.allreduce(sums)
        if bad_loss or bad_gradient:
            kind, what = (LossNotFinite, "loss") if bad_loss else (FloatingPointError, "gradient")
            raise kind(f"the {what} is not finite")
        gradient = self.replica.gradient
        gradient *= gradient.dtype.type(samples / total if total else 0)
        self.team.allreduce(gradient)
        return loss / total if total else 0.0, int(total), not overflows

    def _own_gradient(self, task: Task, number: int) -> tuple[float, int, bool]:
        with span("data"):
            batch = self.items.batch(task, number)
        with span("gradient"):
            return finite_gradient(self.replica, batch, self.loss_scale)

    def measure(self, part: Part) -> np.ndarray:
        """The numbers of the model's metrics (`Replica.measure`) on a part, as one vector."""
        if self.team is None:
            return self._measured(part)
        with numbered(self.ranks):
            self._tell(Answer(Order.EVALUATE, about=part))
            return self._measure_together(part)

    def _measure_together(self, part: Part) -> np.ndarray:
        spread(self.team, self.replica)
        (number, of), ranks = part, self.team.size
        own = self._measured(Part(number * ranks + self.team.rank, of * ranks))
        return self.team.allreduce(own)

    def _measured(self, part: Part) -> np.ndarray:
        size, whole = self.run.validation_batch_size, self.replica.traits.whole_batches
        data = shard(self.run.dataset.validation, *part, size if whole else 1)
        with (
            span("validation"),
            closing(Batches(data, size, shuffle=False).epoch()) as batches,
        ):
            return self.sums.flat(measure(self.replica, batches))

    def _tell(self, order: Answer | tuple = ()) -> Answer:
        """Send an order from the leader to the members, which call it without one, and get it."""
        numbers, words = flat(order), np.zeros(WORDS)
        words[: len(numbers)] = numbers
        return Answer.of_words(self.team.broadcast(words).tolist())

    def follow(self) -> None:
        """Run a member: do its part of every order of the leader."""
        with numbered(self.ranks):
            while (order := self._tell()).order != Order.DONE:
                if order.order == Order.EVALUATE:
                    self._measure_together(order.about)
                    continue
                # A loss that is not finite is for the leader to report, whose failure ends this.
                with suppress(FloatingPointError):
                    for number in range(order.about.count):
                        *_, finite = self._together(order.about, number)
                        self.update_scale(finite)

    def update_scale(self, finite: bool) -> None:
        if self.loss_scale is not None:
            self.loss_scale.update(finite=finite)

    def end(self) -> None:
        """On the leader: end the members' `follow`."""
        if self.team is not None:
            with numbered(self.ranks):
                self._tell(Answer(Order.DONE))


def spread(team, replica) -> None:
    """Give all ranks of `team` the weights and the state of its rank 0. Collective."""
    team.broadcast(replica.parameters)
    if replica.state.size:
        replica.state = team.broadcast(np.copy(replica.state))


class Worker:
    def __init__(self, run, server: Client, computing: Computing):
        self.run, self.rule, self.replica = run, run.strategy, run.replica
        self.server, self.computing = server, computing

    def work(self) -> None:
        server, replica = self.server, self.replica
        server.pull(into=replica.parameters)
        self.rule.begin_worker(replica.parameters, replica.segments)
        server.say(Kind.REPORT)
        while (answer := server.last).order != Order.DONE:
            if answer.order == Order.EVALUATE:
                self.evaluate(answer.about)
            else:
                self.train(answer.about, answer.updates)

    def train(self, task: Task, updates: int) -> None:
        """Train on the batches of a task, and exchange with the master after the last one."""
        run, rule, server = self.run, self.rule, self.server
        loss_sum = seen = weight = 0
        server.last = None
        for number in range(task.count):
            x, g = self.replica.parameters, self.replica.gradient
            run.set_rate(updates + number)
            rule.look_ahead(x)
            try:
                loss, samples, finite = self.computing.gradient(task, number)
            except FloatingPointError as error:
                gradient, items = not isinstance(error, LossNotFinite), self.computing.items
                sample = items.not_a_number(task, number)
                server.say(Kind.NOT_FINITE, NotFiniteAt(gradient, sample=sample))
                raise
            self.computing.update_scale(finite)
            due = number == task.count - 1
            if np.isfinite(loss):  # after an overflow in float16 it may not be
                seen, loss_sum = seen + samples, loss_sum + samples * loss
            if not finite:  # synchronous: weight 0 in the mean; asynchronous: no step below
                g[:] = 0
            elif run.clip_norm is not None and not rule.clips:
                clip_by_norm(g, run.clip_norm)
            weight += samples if finite else 0
            report = Report(task.epoch, seen, loss_sum, task.count, weight)
            server.report = report if due else None
            if rule.synchronous or (finite and (samples or (due and seen))):
                with span("update"):
                    rule.step(x, g, server, due)
                if self.replica.traits.constrained:
                    self.replica.constrain(self.replica.parameters)
        if server.last is None:  # nothing was pushed
            server.say(Kind.REPORT, report)

    def evaluate(self, part: Part) -> None:
        """Evaluate the master's weights on a part of the validation data; restores the own ones."""
        replica, server = self.replica, self.server
        own, own_state = replica.parameters.copy(), np.copy(replica.state)
        assign(replica, *server.get(Kind.SNAPSHOT))
        found = self.computing.measure(part)
        assign(replica, own, own_state)
        self.rule.after_break(replica.parameters, server)
        for piece in Evaluated.pieces(found):
            server.say(Kind.EVALUATED, piece)
