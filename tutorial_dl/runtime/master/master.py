"""`Master`: what every master does: serve requests, hand out work, do without leaves that fail.

A single loop, which never waits for a particular leaf:

    next request -> apply its vector by the rule -> count what was done -> answer with an order

A request that can't be answered yet (the round is not complete, or there is no work at the moment)
is kept and answered later.
"""

import math
import sys
import time
from collections import Counter

import numpy as np

from numba_kernels.spans import span
from numba_kernels.star.star import Star
from numba_kernels.team import stall

from ...strategies.center import Center
from ..errors import NotFinite, TrainingError
from .messages import Answer, Kind, NotFiniteAt, Order, Report, flat, request_of
from .validation import Evaluated, Part, Validation

LOOK = 0.2  # seconds between checks for failed leaves
PATIENCE = 60.0  # a worker that others wait for may take at least this long for a task, and
TIMES = 20  # at least this many times the longest task so far
SUMS = ("samples", "loss", "updates", "staleness")  # of a Report
FIRST_PATIENCE = 600.0  # the first task may include a long compilation
AWAY = 1.0  # seconds without a check after which the master counts as having been stopped or busy


class Master:
    """A master of workers or sub-masters, its leaves; `ranks` are the ranks of its star in the run.

    `tasks` say what there is to do. A subclass has also

        updates                        updates of the whole run, as far as known here
        stopping                       whether to hand out no more work
        stepped(steps, samples, loss)  called after updates, with the sum of the losses
        validated(validation)          called when all parts of it are done
        from_sub_master(leaf, kind, record)    handle a request without a vector of a sub-master
    """

    relayed = False  # whether the leaves are sub-masters

    def __init__(self, loop, star: Star, ranks: list[int], tasks):
        self.loop, self.run = loop, loop.run
        self.rule, self.star, self.ranks, self.tasks = self.run.strategy, star, ranks, tasks
        self.weights = self.run.replica.parameters.copy()
        self.state = np.copy(self.run.replica.state)
        replica = self.run.replica
        constrain = replica.constrain if replica.traits.constrained else None
        self.center = Center(self.rule, self.weights, constrain)
        self.n = self.weights.size
        self.open = list(star.leaves)  # leaves that take part
        self.waiting: list[int] = []  # leaves that wait for an order
        self.round: dict[int, Report] = {}  # synchronous rules, or a quorum: requests so far
        self._closes = math.inf  # when the round's grace window is over
        self.missed: set[int] = set()  # leaves whose task the last round did not wait for
        self.replaced: set[int] = set()  # those whose task others have got
        self.serving = False  # in the middle of an update, when weights are inconsistent
        self.validations: list[Validation] = []
        self.sums: dict[int, dict[str, float]] = {}  # epoch -> sums for the history
        self.states: dict[int, tuple[float, np.ndarray]] = {}
        self.final: tuple[np.ndarray, np.ndarray] | None = None
        self.text = b""  # the final message
        # leaf -> (start time, kind of order); None: its first request has not come yet
        self.busy: dict[int, tuple[float, int | None]] = {}
        self.longest: dict[int, float] = {}  # kind of order -> longest time in seconds
        self.lost: list[str] = []  # a line for each lost leaf
        self.gone: list[int] = []  # their ranks
        self.shares: Counter[int] = Counter()  # number of shares done, by rank
        self.staleness: Counter[int] = Counter()
        self._quiet = self._looked = self._end = time.monotonic()
        self._stalled = stall.REPORT
        if not self.relayed:
            self.busy = dict.fromkeys(self.open, (self._quiet, None))

    def deserted(self, line: str) -> None:
        """Called when the last leaf is lost; `line` says so."""
        raise TrainingError(f"no worker is left to train: {line}")

    def between(self) -> None:
        """Called after each request."""

    def begin_tasks(self) -> None:
        """Begin the next round, if there are rounds and it is time for one."""
        self.tasks.stopped = self.tasks.stopped or self.stopping
        self.tasks.begin()

    def round_is_complete(self) -> bool:
        """Whether the vectors of all participants have arrived; or those of a quorum, and its
        grace window is over.
        """
        quorum, now = self.rule.quorum, time.monotonic()
        if quorum:
            self.hand_out()  # who waits then has nothing to do, and so has come, too
        if quorum is None or len(self.round) + len(self.waiting) < quorum or not self.round:
            self._closes = math.inf
        elif self._closes == math.inf:
            self._closes = now + self.rule.grace
        everyone = not self.busy if quorum else self.tasks.given.keys() <= self.round.keys()
        return bool(self.round) and (everyone or now >= self._closes)

    @property
    def over(self) -> bool:
        return self.tasks.over and not self.round

    def order_for(self, leaf: int) -> Answer | None:
        """The order for `leaf`, apart from validation; None: nothing to do yet."""
        if self.final is not None:
            return Answer(Order.DONE)
        task = self.tasks.next(leaf)
        if task is None and self.missed and not self.tasks.stopped:
            late = self.missed.pop()  # nobody waits for it: others do its task, too
            self.replaced.add(late)
            self.tasks.lose(late)
            self.tasks.give_back(late)
            task = self.tasks.next(leaf)
        return None if task is None else Answer(Order.TRAIN, about=task)

    # The loop

    def serve(self, finished) -> None:
        looked = -math.inf
        self.hand_out()  # leaves may wait for what has come about since the last request
        while not finished():
            leaf = self.star.next(max(0.0, min(LOOK, self._closes - time.monotonic())))
            now = time.monotonic()
            self._forgive(now)
            if leaf is not None:
                self._quiet, self._stalled = now, stall.REPORT
                self.handle(leaf)
            elif now - self._quiet > self._stalled:
                self._stalled *= 2
                self._say_who_is_late(now - self._quiet)
            if now - looked > LOOK:
                looked = now
                self.look_after_lost(now)
            self.between()
            self.hand_out()

    def handle(self, leaf: int) -> None:
        star = self.star
        kind, record = request_of(star.head(leaf).tolist())
        if leaf not in self.open:
            star.answer(leaf, flat(Answer(Order.GIVEN_UP)), vector=False)
        elif kind == Kind.PULL:
            self.center.pull(leaf, star.answer_vector(leaf)[: self.n])
            star.answer(leaf, flat(Answer(Order.GO_ON, self.updates)))
        elif kind == Kind.SNAPSHOT:
            asked = next(v for v in self.validations if leaf in v.given)
            self._fill(leaf, asked.weights, asked.state)
        elif kind == Kind.EVALUATED and not record.last:
            self.measured(leaf, record)
            star.answer(leaf, flat(Answer(Order.GO_ON, self.updates, self.stopping)), vector=False)
        elif kind == Kind.FINAL:
            self._fill(leaf, *self.final)
            if not star.send_bytes(leaf, self.text):
                self.lose(leaf, "it did not take the final message")
            else:
                self.open.remove(leaf)  # it stays in the star: `fit` may be called again
        elif kind == Kind.NOT_FINITE:
            self.not_finite(record._replace(rank=record.rank or self.ranks[leaf]))
        else:
            self._done(leaf, kind, record)

    def not_finite(self, found: NotFiniteAt) -> None:
        which = f"the {'gradient' if found.gradient else 'loss'} is not finite"
        train, words = self.run.dataset.train, None
        if found.sample >= 0:
            words = train.not_a_number(slice(found.sample, found.sample + 1))
        where, rate = f"on rank {found.rank}", self.rule.optimizer.learning_rate
        raise NotFinite(which, where, rate, words)

    def _done(self, leaf: int, kind: int, record) -> None:
        """Handle a request that reports a task or a part of a validation as done."""
        since, order = self.busy.pop(leaf, (0.0, None))
        if order is not None:
            took = time.monotonic() - since
            self.longest[order] = max(self.longest.get(order, 0.0), took)
        self.missed.discard(leaf)
        if kind == Kind.EVALUATED:
            self.measured(leaf, record)
        elif leaf in self.replaced:
            self.replaced.remove(leaf)
            self.tasks.workers.append(leaf)
            if self.star.wanted(leaf):
                self.center.pull(leaf, self.star.answer_vector(leaf)[: self.n])
            record = record._replace(steps=0)
        elif kind == Kind.PUSH and (self.rule.synchronous or self.rule.quorum):
            self.round[leaf] = record
            return
        elif kind == Kind.PUSH:
            self.serving = True
            self._keep_state(leaf, record.samples)
            with span("serve"):
                staleness = self._push(leaf)
            if not self.relayed:  # else counted by the group
                self.staleness[staleness] += 1
                record = record._replace(updates=1, staleness=staleness)
        elif self.relayed:
            self.from_sub_master(leaf, kind, record)
        counts = kind == Kind.PUSH or (kind == Kind.REPORT and not self.relayed)
        if counts and record.steps:
            done = self._count(leaf, record)
            self.serving = False
            self.stepped(int(done.steps), done.samples, done.loss)
        self.waiting.append(leaf)

    def _count(self, leaf: int, report: Report) -> Report:
        """Add work that is now in the weights to all sums, and return it."""
        self.tasks.done(leaf)
        self._add(leaf, report)
        return report

    def _add(self, leaf: int, report: Report) -> None:
        sums = self.sums.setdefault(report.epoch, dict.fromkeys(SUMS, 0.0))
        for name in SUMS:
            sums[name] += getattr(report, name)
        if not self.relayed:
            self.shares[self.ranks[leaf]] += int(report.steps)

    def _push(self, leaf: int) -> int:
        wanted = self.star.wanted(leaf)
        answer = self.star.answer_vector(leaf)[: self.n] if wanted else None
        return self.center.push(leaf, self.star.sent(leaf)[: self.n], answer, self.relayed)

    def serve_round(self) -> None:
        """Apply the vectors of a complete round."""
        leaves = sorted(self.round)
        sent = [self.star.sent(leaf)[: self.n] for leaf in leaves]
        answers = [self.star.answer_vector(leaf)[: self.n] for leaf in leaves]
        samples = np.array([self.round[leaf].weight for leaf in leaves])
        self.serving = True
        for leaf in leaves:
            self._keep_state(leaf, self.round[leaf].samples)
        weights = [s / sum(samples) if sum(samples) else 0.0 for s in samples]
        with span("serve"):
            ages = self.center.push_all(leaves, sent, answers, weights, self.relayed)
        done = [self._count(leaf, self.round[leaf]) for leaf in leaves if self.round[leaf].steps]
        self.waiting += [leaf for leaf in leaves if leaf in self.open]  # others were lost meanwhile
        self.round.clear()
        self._closes = math.inf
        self.serving = False
        steps = max((one.steps for one in done), default=0)  # a whole round is one step
        if self.rule.quorum:  # of batches that are not shared
            self.missed = set(self.tasks.given)
            self.staleness.update(ages)
            steps = sum(one.steps for one in done)
        self.stepped(int(steps), sum(one.samples for one in done), sum(one.loss for one in done))

    def hand_out(self) -> None:
        for leaf in list(self.waiting):
            if (answer := self.to_validate(leaf) or self.order_for(leaf)) is not None:
                self.waiting.remove(leaf)
                if answer.order in (Order.TRAIN, Order.EVALUATE):
                    self.busy[leaf] = time.monotonic(), answer.order
                answer = answer._replace(updates=self.updates, stopping=self.stopping)
                self.star.answer(leaf, flat(answer), vector=self.star.wanted(leaf))

    def to_validate(self, leaf: int) -> Answer | None:
        """A part of a validation for `leaf`, if one is left to do."""
        if any(leaf in validation.given for validation in self.validations):
            return None  # a sub-master, which asks again before its group is done
        for validation in self.validations:
            if validation.todo:
                validation.given[leaf] = part = validation.todo.popleft()
                return Answer(Order.EVALUATE, about=Part(part, validation.of))
        return None

    def measured(self, leaf: int, piece: Evaluated) -> None:
        next(v for v in self.validations if leaf in v.given).add(leaf, piece)

    def end_validations(self) -> None:
        """End the validations that are complete, in order."""
        while self.validations and self.validations[0].complete:
            self.validated(self.validations.pop(0))

    def end(self, weights: np.ndarray, state: np.ndarray, text: bytes) -> None:
        """Send the final weights, state and message to all remaining leaves."""
        self.final, self.text = (weights, state), text
        self._end = time.monotonic() + PATIENCE
        self.serve(lambda: not self.open or time.monotonic() > self._end)
        for leaf in list(self.open):
            self.lose(leaf, "it did not ask for the final message")

    # Weights and states

    def begin(self) -> None:
        """Make the rule's state, and move it and the weights to where workers can reach them."""
        if not self.loop.begun:
            self.rule.begin_master(self.weights, self.run.replica.segments)
            self.loop.begun = True
        home = self.loop.stars.home(self.rule)
        home[:] = self.weights
        self.weights = self.center.weights = home

    def _fill(self, leaf: int, weights: np.ndarray, state: np.ndarray) -> None:
        answer = self.star.answer_vector(leaf)
        answer[: self.n], answer[self.n :] = weights, state
        self.star.answer(leaf, flat(Answer(Order.GO_ON, self.updates)))

    def _keep_state(self, leaf: int, samples: float) -> None:
        if self.state.size:
            before = self.states.get(leaf, (0.0, None))[0]
            self.states[leaf] = before + samples, self.star.sent(leaf)[self.n :].copy()

    def mean_state(self) -> np.ndarray:
        """The mean of the leaves' `state`, weighted by the samples that each has seen."""
        known = [(weight, state) for weight, state in self.states.values() if weight]
        if not known:
            return self.state.copy()
        weights, states = zip(*known, strict=True)
        mean = np.average(np.array(states, np.float64), axis=0, weights=weights)
        return mean.astype(self.state.dtype)

    # Failures

    def look_after_lost(self, now: float) -> None:
        for leaf, why in self.star.lost().items():
            self.lose(leaf, why)
        for leaf, (since, order) in list(self.busy.items()):
            patience = self.patience(order)
            if now - since > patience and now - self._quiet > patience:
                self.lose(leaf, f"it has taken {now - since:.0f} s for one task")

    def patience(self, order: int | None) -> float:
        """Seconds that a worker may take for this kind of order while others wait."""
        if not self.waiting and not self.round:
            return math.inf
        return (
            max(PATIENCE, TIMES * self.longest[order]) if order in self.longest else FIRST_PATIENCE
        )

    def _forgive(self, now: float) -> None:
        """If this process was stopped or busy, perhaps the whole job was: extend all deadlines."""
        away, self._looked = now - self._looked - LOOK, now
        if away > AWAY:
            self._quiet, self._end = min(now, self._quiet + away), self._end + away
            self.busy = {
                leaf: (min(now, since + away), order) for leaf, (since, order) in self.busy.items()
            }

    def lose(self, leaf: int, why: str) -> None:
        if leaf not in self.open:
            return
        self.open.remove(leaf)
        if leaf in self.waiting:
            self.waiting.remove(leaf)
        self.busy.pop(leaf, None)
        self.tasks.lose(leaf)
        if leaf not in self.round:  # else its vector for this round has arrived, and counts
            self.tasks.give_back(leaf)
        for validation in self.validations:
            validation.lose(leaf)
        line = f"{self.who(leaf)} is lost: {why}"
        self.lost.append(line)
        self.gone.append(self.ranks[leaf])
        if not self.open and self.final is None:
            self.deserted(line)
        rest = "; the others take over its samples" if self.final is None else ""
        print(f"note: {line}{rest}", file=sys.stderr, flush=True)

    def who(self, leaf: int) -> str:
        return f"the worker on rank {self.ranks[leaf]}"

    def _say_who_is_late(self, waited: float) -> None:
        here = {*self.waiting, *self.round}
        late = [self.ranks[leaf] for leaf in self.open if leaf not in here]
        if late and (self.waiting or self.round):
            words = {"T": " (stopped by a signal)", "t": " (in a debugger)"}
            of = {self.ranks[leaf]: self.star.team.pid(leaf) for leaf in self.open}
            where = stall.ranks_in_words(
                late, lambda rank: words.get(of[rank] and stall.state(of[rank]), "")
            )
            print(f"stall: a master has waited {waited:.0f} s for {where}", file=sys.stderr)
