r"""`SubMaster`: a master to its workers, and a worker to the master above.

                     master
                   /        \
          sub-master        sub-master        occasionally: the group's changes go up,
          /   |   \         /   |   \                       the master's weights come down
         w    w    w       w    w    w        always: as with any master

The top master gets one message per group instead of one per worker, so more workers can train than
it could serve itself. The price is staleness: a group sees the updates of other groups late. The
number of worker exchanges per exchange with the top master is fixed, or chosen so that the latter
take `PART` of the group's time (`Balance`).
"""

import math
import time
from collections import Counter

from . import master
from .client import Client
from .master import Master
from .messages import PAIRS, PIECES, Counts, Kind, Lost, NotFiniteAt, Order, Report
from .tasks import joined
from .validation import Evaluated, Validation

PART = 0.1  # fraction of a group's time for exchanges with the master above
MOST = 16  # most worker exchanges per exchange upwards, which limits staleness


class Balance:
    """Worker exchanges per exchange of a sub-master with the top master: `every`.

    With `upward` "auto" it is t_up / (PART t), if an exchange upwards takes t_up and a worker
    exchange comes every t seconds; else it is `upward`.
    """

    def __init__(self, upward: int | str):
        self.fixed = upward != "auto"
        self.every = upward if self.fixed else 1
        self._up = self._below = None

    def exchanged(self, took: float, between: float) -> None:
        """Update with an exchange upwards of `took` s, and worker exchanges every `between` s."""
        if self.fixed:
            return
        self._up = took if self._up is None else 0.8 * self._up + 0.2 * took
        self._below = between if self._below is None else 0.8 * self._below + 0.2 * between
        wanted = math.ceil(self._up / (PART * max(self._below, 1e-9)))
        self.every = max(1, min(wanted, MOST))


def _parts(report: Report) -> list[Report]:
    """The same report in as many as it takes to say what is done."""
    done = joined(report.done)
    first, *others = [tuple(done[at : at + PIECES]) for at in range(0, len(done), PIECES)] or [()]
    return [report._replace(done=first), *(Report(report.epoch, done=some) for some in others)]


class SubMaster(Master):
    """A sub-master (see above); `up` is its end of the star of the master above.

    Its `tasks` begin no epoch: they are what the master above has given to it.
    """

    def __init__(self, loop, star, ranks, tasks, up: Client):
        super().__init__(loop, star, ranks, tasks)
        self.up = up
        upward = self.rule.upward
        self.balance = Balance(upward)
        self.exchanges = 0  # with workers, since the last one upwards
        self.since = time.monotonic()
        self.pending: dict[int, Report] = {}  # not yet reported, by epoch
        self.updates, self.stopping = 0, False  # of the whole run, as the master above says
        self.told_empty = False  # whether the master above knows that no worker is left here
        self.sure: Counter[int] = Counter()  # `shares` of work that the master above has

    def guide(self) -> None:
        """Serve until the master above says that training is done."""
        up, rule = self.up, self.rule
        up.pull(into=self.weights)
        self.begin()
        rule.begin_relay(self.weights)
        while True:
            self.serve(lambda: (self.over and not self.validations) or not self.open)
            if not self.open and rule.synchronous:
                self._forget()
            self._relay()
            self._tell_of_lost()
            if not self.open:
                self._leave()
            self._tell_counts()
            if self.over and not self.validations:  # no answer so far was an order
                self._say(Kind.WAITS)
                if up.last.order == Order.DONE:
                    return

    def _leave(self) -> None:
        """No worker is left here: other groups do what is not done."""
        if not self.told_empty:
            self._say(Kind.LEFT)
            self.told_empty = True
        self.tasks.left.clear()
        self.validations.clear()

    def _forget(self) -> None:
        """Forget a part of a synchronous task, all of which others will do."""
        if self.pending:
            self.shares = self.sure
        self.pending = {}

    def _tell_counts(self) -> None:
        """Report updates by staleness, and shares by rank, since the last report."""
        for of_ranks, counts in enumerate((self.staleness, self.shares)):
            pairs = tuple(counts.items())
            for first in range(0, len(pairs), PAIRS):
                self._say(Kind.COUNTS, Counts(of_ranks, pairs[first : first + PAIRS]))
            counts.clear()
        self.sure.clear()

    # The interface of Master

    def stepped(self, steps, samples, loss_sum) -> None:
        self.exchanges += 1
        self.updates += steps
        self.run.set_rate(self.updates)

    def _count(self, leaf, report):
        steps = 0.0 if self.rule.synchronous else report.steps  # synchronous: see serve_round
        done = () if self.rule.synchronous else tuple(self.tasks.given[leaf][0].places())
        self._report(report._replace(steps=steps, weight=report.samples, done=done))
        return super()._count(leaf, report)

    def serve_round(self) -> None:
        epoch = next(iter(self.round.values())).epoch
        steps = max(report.steps for report in self.round.values())
        self._report(Report(epoch, steps=steps))
        super().serve_round()

    def _report(self, report: Report) -> None:
        """Report this with the next exchange upwards."""
        epoch = report.epoch
        self.pending[epoch] = self.pending.get(epoch, Report(epoch)).plus(report)

    def between(self) -> None:
        if self.round_is_complete():
            self.serve_round()
        self._tell_of_lost()
        complete = self.tasks.complete()  # all of what the master above gave
        if complete or (not self.rule.synchronous and self.exchanges >= self.balance.every):
            self._relay()
        self.end_validations()
        self.begin_tasks()

    def deserted(self, line: str) -> None:
        """Do nothing, because other groups continue."""

    def patience(self, order) -> float:
        """As for any master, but finite: in the end other groups wait for this one."""
        alone = max(master.FIRST_PATIENCE, master.TIMES * self.longest.get(order, 0.0))
        return min(super().patience(order), alone)

    def not_finite(self, found: NotFiniteAt) -> None:
        self.up.say(Kind.NOT_FINITE, found)  # this raises, as the master above fails
        super().not_finite(found)

    # Upwards

    def _tell_of_lost(self) -> None:
        while self.gone and self.final is None:
            self._say(Kind.LOST, Lost(self.gone.pop()))

    def _relay(self) -> None:
        """Exchange with the master above, if there is anything to report."""
        if not self.pending:
            return
        began = time.monotonic()
        if self.run.saving is not None:  # what will hold once this exchange is in the weights
            self._tell_counts()
        first, *others = [one for _, each in sorted(self.pending.items()) for one in _parts(each)]
        for report in others:
            self._say(Kind.REPORT, report)
        self.up.report = first
        if self.state.size:
            self.run.replica.state = self.mean_state()
        self.rule.relay(self.weights, self.up)
        self.center.version += 1
        if self.rule.synchronous:  # all workers begin the next round with these weights
            for leaf in filter(self.star.wanted, self.waiting):
                self.rule.refresh(self.weights, self.star.answer_vector(leaf)[: self.n])
        took = time.monotonic() - began
        between = (began - self.since) / max(1, self.exchanges)
        self.balance.exchanged(took, between)
        self.exchanges, self.since = 0, time.monotonic()
        self.pending = {}
        self.sure = self.shares.copy()
        self._heed()

    def _say(self, kind: Kind, record: tuple = ()) -> None:
        self.up.say(kind, record)
        self._heed()

    def _heed(self) -> None:
        """Act on the answer of the master above."""
        answer = self.up.last
        self.updates = answer.updates
        self.stopping = answer.stopping and not self.rule.synchronous  # it ends its round
        if answer.order == Order.EVALUATE:
            weights, state = self.up.get(Kind.SNAPSHOT)
            (part, of), n = answer.about, max(1, len(self.open))
            own = range(part * n, (part + 1) * n)
            self.validations.append(Validation(-1, weights.copy(), state.copy(), own, of * n))
        elif answer.order == Order.TRAIN:
            self.tasks.take(answer.about)
            self.tasks.begin()

    def validated(self, validation: Validation) -> None:
        for piece in Evaluated.pieces(validation.total()):
            self._say(Kind.EVALUATED, piece)
