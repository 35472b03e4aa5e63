"""What every master does: serve whoever asks, hand out work, do without those that fail.

One loop, in which nothing waits for anybody in particular:

    next request -> its vector to the rule -> what was done is counted -> what to do next is said

A request that there is nothing to answer yet (the round is not complete, no work is left for the
moment) stays where it is, and is answered later.
"""

from __future__ import annotations

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
from .messages import Kind, Order
from .validation import Validation

LOOK = 0.2  # seconds between looks after those that failed
PATIENCE = 60.0  # at least so long, and `TIMES` its usual time, may a worker be at a task when
TIMES = 20  # nobody else has anything left to do
SUMS = ("samples", "loss", "updates", "staleness")
FIRST_PATIENCE = 600.0  # the first task may compile for long
AWAY = 1.0  # a master that has not looked for so many seconds was stopped, or busy


class Hub:
    """A master of workers, or of sub-masters.

    Args:
        trainer: whose rule, model and settings
        star: this rank is the hub of it
        ranks: of the run, of the star's ranks
        tasks: what there is to do for workers (Columns, Rounds); None: sub-masters have their own
    """

    relayed = False  # whether those below are sub-masters

    def __init__(self, trainer, star: Star, ranks: list[int], tasks=None):
        self.trainer, self.rule, self.star, self.ranks = trainer, trainer.strategy, star, ranks
        self.tasks = tasks
        self.weights = trainer.replica.parameters.copy()
        self.state = np.copy(trainer.replica.state)
        self.center = Center(self.rule, self.weights)
        self.n = self.weights.size
        self.open = list(star.leaves)  # those that work
        self.waiting: list[int] = []  # for an order
        self.round: dict[int, np.ndarray] = {}  # of the synchronous form: what came so far
        self.serving = False  # in the middle of an update: weights are not whole
        self.validations: list[Validation] = []
        self.sums: dict[int, dict[str, float]] = {}  # epoch -> for the history
        self.steps_of_round = [0.0, 0.0, 0.0]  # steps, samples, loss
        self.states: dict[int, tuple[float, np.ndarray]] = {}
        self.final: tuple[np.ndarray, np.ndarray] | None = None
        self.text = b""  # what those below are told at the end
        # leaf -> since when it is at what kind of order; None: it has yet to come
        self.busy: dict[int, tuple[float, int | None]] = {}
        self.longest: dict[int, float] = {}  # kind of order -> seconds
        self.lost: list[str] = []
        self.gone: list[int] = []  # the ranks of those
        self.shares: Counter[int] = Counter()  # of those below, by rank
        self.staleness: Counter[int] = Counter()
        self._quiet = self._looked = self._end = time.monotonic()
        self._stalled = stall.REPORT
        if not self.relayed:
            self.busy = dict.fromkeys(self.open, (self._quiet, None))

    # What masters differ in

    @property
    def updates(self) -> int:
        """Of the whole run, as far as is known here: what schedules go by."""
        raise NotImplementedError

    @property
    def stopping(self) -> bool:
        """No more work is to be handed out."""
        raise NotImplementedError

    def stepped(self, steps: int, samples: float, loss_sum: float) -> None:
        """The weights have had the updates of so many batches."""
        raise NotImplementedError

    def told(self, leaf: int, kind: int, words) -> None:
        """What only sub-masters say."""
        raise NotImplementedError

    def deserted(self, line: str) -> None:
        """The last one of those below is lost; `line` says so."""
        raise TrainingError(f"nobody is left to train: {line}")

    def validated(self, validation: Validation) -> None:
        """All parts of it are done."""
        raise NotImplementedError

    def between(self) -> None:
        """After each request."""

    def order_for(self, leaf: int) -> list[float] | None:
        """What `leaf` is to do now, besides validating; None: nothing yet."""
        raise NotImplementedError

    # The loop

    def serve(self, finished) -> None:
        """Until `finished()`."""
        looked = 0.0
        while not finished():
            leaf = self.star.next(LOOK)
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
        """One request."""
        star, words = self.star, self.star.words(leaf).copy()
        kind = int(words[0])
        if leaf not in self.open:
            star.answer(leaf, [Order.GIVEN_UP], vector=False)
        elif kind == Kind.PULL:
            self.center.pull(leaf, star.answer_vector(leaf)[: self.n])
            star.answer(leaf, [Order.GO_ON, self.updates])
        elif kind == Kind.SNAPSHOT:
            asked = next(v for v in self.validations if leaf in v.given)
            self._fill(leaf, asked.weights, asked.state)
        elif kind == Kind.FINAL:
            self._fill(leaf, *self.final)
            if not star.tell(leaf, self.text):
                self.lose(leaf, "it did not take the final word")
            else:
                self.open.remove(leaf)  # (not dropped: `fit` may be called again)
        elif kind == Kind.NOT_FINITE:
            self.not_finite(int(words[1]), int(words[2]) or self.ranks[leaf])
        else:
            self._done(leaf, kind, words)

    def not_finite(self, what: int, rank: int) -> None:
        """A worker's loss (0) or gradient (1) is no number."""
        raise NotFinite(
            f"the {('loss', 'gradient')[what]} is not finite on rank {rank}; a learning rate below "
            f"{self.rule.optimizer.learning_rate}, or data without NaN, is needed"
        )

    def _done(self, leaf: int, kind: int, words) -> None:
        """A task is done, or a validation."""
        since, order = self.busy.pop(leaf, (0.0, None))
        if order is not None:
            took = time.monotonic() - since
            self.longest[order] = max(self.longest.get(order, 0.0), took)
        staleness = None
        if kind == Kind.EVALUATED:
            validation = next(v for v in self.validations if leaf in v.given)
            validation.add(leaf, words[3:])
        elif kind in (Kind.PUSH, Kind.RELAY) and self.rule.synchronous:
            self.round[leaf] = words
            if self.tasks is not None:
                self.tasks.done(leaf)
            return
        elif kind in (Kind.PUSH, Kind.RELAY):
            self.serving = True
            self._keep_state(leaf, words[2])
            with span("serve"):
                staleness = self._push(leaf)
        elif kind != Kind.REPORT:
            self.told(leaf, kind, words)
        if kind in (Kind.PUSH, Kind.RELAY, Kind.REPORT) and words[4]:
            self._count(leaf, words, staleness)
        self.waiting.append(leaf)

    def _count(self, leaf: int, words, staleness: int | None) -> None:
        """What `leaf` says that it has done: words of a PUSH, RELAY or REPORT."""
        self._sum_up(leaf, words, staleness)
        self._step(*map(float, words[2:5]))

    def _sum_up(self, leaf: int, words, staleness: int | None) -> None:
        """For the history."""
        epoch, samples, loss_sum, shares = int(words[1]), *map(float, words[2:5])
        if self.tasks is not None:
            self.tasks.done(leaf)
        sums = self.sums.setdefault(epoch, dict.fromkeys(SUMS, 0.0))
        sums["samples"] += samples
        sums["loss"] += loss_sum
        if self.relayed:  # what a group has counted
            sums["updates"] += float(words[5])
            sums["staleness"] += float(words[6])
        else:
            self.shares[self.ranks[leaf]] += int(shares)
        if staleness is not None and not self.relayed:
            self.staleness[staleness] += 1
            sums["updates"] += 1
            sums["staleness"] += staleness

    def _step(self, samples: float, loss_sum: float, shares: float) -> None:
        """So much more is in the weights."""
        if self.rule.synchronous:  # all of a round together are a step
            steps, seen, loss = self.steps_of_round
            self.steps_of_round = [max(steps, shares), seen + samples, loss + loss_sum]
        else:
            self.serving = False
            self.stepped(int(shares), samples, loss_sum)

    def _push(self, leaf: int) -> int:
        wanted = self.star.wanted(leaf)
        answer = self.star.answer_vector(leaf)[: self.n] if wanted else None
        return self.center.push(leaf, self.star.sent(leaf)[: self.n], answer, self.relayed)

    def serve_round(self) -> None:
        """The synchronous form: all that take part are here."""
        leaves = sorted(self.round)
        sent = [self.star.sent(leaf)[: self.n] for leaf in leaves]
        answers = [self.star.answer_vector(leaf)[: self.n] for leaf in leaves]
        samples = [self.round[leaf][2 if self.relayed else 5] for leaf in leaves]
        self.serving = True
        for leaf in leaves:
            self._keep_state(leaf, self.round[leaf][2])
        weights = [s / sum(samples) if sum(samples) else 0.0 for s in samples]
        with span("serve"):
            self.center.push_all(leaves, sent, answers, weights, self.relayed)
        for leaf in leaves:
            if self.round[leaf][4]:
                self._count(leaf, self.round[leaf], None)
        self.waiting += [leaf for leaf in leaves if leaf in self.open]  # others are gone meanwhile
        self.round.clear()
        self.serving = False
        steps, seen, loss = self.steps_of_round
        self.steps_of_round = [0.0, 0.0, 0.0]
        self.stepped(int(steps), seen, loss)

    def hand_out(self) -> None:
        """Answer those for whom there is an answer now."""
        for leaf in list(self.waiting):
            if (order := self.to_validate(leaf) or self.order_for(leaf)) is not None:
                self.waiting.remove(leaf)
                if order[0] in (Order.TRAIN, Order.EVALUATE):
                    self.busy[leaf] = time.monotonic(), order[0]
                words = [order[0], self.updates, self.stopping, *order[1:]]
                self.star.answer(leaf, words, vector=self.star.wanted(leaf))

    def to_validate(self, leaf: int) -> list[float] | None:
        """A part of the validation for `leaf`, if there is one to be done."""
        if any(leaf in validation.given for validation in self.validations):
            return None  # a sub-master, which comes back before its group is through
        for validation in self.validations:
            if validation.todo:
                validation.given[leaf] = chunk = validation.todo.popleft()
                return [Order.EVALUATE, chunk, validation.of]
        return None

    def end_validations(self) -> None:
        """In their order, those of which all parts are done."""
        while self.validations and self.validations[0].complete:
            self.validated(self.validations.pop(0))

    def end(self, weights: np.ndarray, state: np.ndarray, text: bytes) -> None:
        """Tell all that are left that all is done, and what came of it."""
        self.final, self.text = (weights, state), text
        self._end = time.monotonic() + PATIENCE
        self.serve(lambda: not self.open or time.monotonic() > self._end)
        for leaf in list(self.open):
            self.lose(leaf, "it did not come for the last word")

    # Weights and states

    def move_home(self) -> None:
        """Have weights and the rule's state lie where workers of this node can help with them."""
        home = self.trainer.run.home(self.rule)
        home[:] = self.weights
        self.weights = self.center.weights = home

    def _fill(self, leaf: int, weights: np.ndarray, state: np.ndarray) -> None:
        answer = self.star.answer_vector(leaf)
        answer[: self.n], answer[self.n :] = weights, state
        self.star.answer(leaf, [Order.GO_ON, self.updates])

    def _keep_state(self, leaf: int, samples: float) -> None:
        if self.state.size:
            before = self.states.get(leaf, (0.0, None))[0]
            self.states[leaf] = before + samples, self.star.sent(leaf)[self.n :].copy()

    def mean_state(self) -> np.ndarray:
        """Of all below, by the samples that each has seen; what is averaged, not optimised."""
        known = [(weight, state) for weight, state in self.states.values() if weight]
        if not known:
            return self.state.copy()
        weights, states = zip(*known, strict=True)
        mean = np.average(np.array(states, np.float64), axis=0, weights=weights)
        return mean.astype(self.state.dtype)

    def show(self, weights: np.ndarray, state: np.ndarray) -> None:
        """In this rank's own replica, which nobody trains."""
        replica = self.trainer.replica
        replica.parameters[:] = weights
        if state.size:
            replica.state = state

    # Those that fail

    def look_after_lost(self, now: float) -> None:
        for leaf, why in self.star.lost().items():
            self.lose(leaf, why)
        for leaf, (since, order) in list(self.busy.items()):
            patience = self.patience(order)
            if now - since > patience and now - self._quiet > patience:
                self.lose(leaf, f"it has been at one task for {now - since:.0f} s")

    def patience(self, order: int | None) -> float:
        """Seconds that a worker may be at such an order, for those who wait for it."""
        if not self.waiting and not self.round:
            return math.inf
        return (
            max(PATIENCE, TIMES * self.longest[order]) if order in self.longest else FIRST_PATIENCE
        )

    def _forgive(self, now: float) -> None:
        """If this process has slept, or was busy, then perhaps the whole job was: none is late."""
        away, self._looked = now - self._looked - LOOK, now
        if away > AWAY:
            self._quiet, self._end = min(now, self._quiet + away), self._end + away
            self.busy = {
                leaf: (min(now, since + away), order) for leaf, (since, order) in self.busy.items()
            }

    def lose(self, leaf: int, why: str) -> None:
        """Go on without `leaf`."""
        if leaf not in self.open:
            return
        self.open.remove(leaf)
        if leaf in self.waiting:
            self.waiting.remove(leaf)
        self.busy.pop(leaf, None)  # (what it sent for this round is here, and counts)
        if self.tasks is not None:
            self.tasks.lose(leaf)
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
