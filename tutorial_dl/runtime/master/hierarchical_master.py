"""`HierarchicalMaster`: the master above sub-masters, which hand out work and report results."""

from __future__ import annotations

from collections import deque
from functools import reduce

from ..errors import TrainingError
from .ledger import Ledger
from .messages import Kind, Order, Report
from .tasks import Rest
from .top_master import TopMaster


class HierarchicalMaster(TopMaster):
    """The top master of sub-masters, each with a group of workers and a part of every epoch.

    A group whose workers are all lost leaves its part to the other groups, piece by piece.
    """

    relayed = True

    def __init__(self, *arguments, ledger: Ledger):
        super().__init__(*arguments)
        self.ledger = ledger
        self.next_epoch = 0  # the next epoch to end; epochs end in order
        self.ended: dict[int, set[int]] = {}  # epoch -> sub-masters that have completed it
        self.resting: set[int] = set()  # sub-masters with nothing left to hand out
        self.empty: set[int] = set()  # sub-masters without workers
        self.left: deque[Rest] = deque()  # work of empty groups, to be adopted
        # REPORT and COUNTS by sub-master, valid from its next exchange on
        self.reports: dict[int, list] = {}
        self.counts: dict[int, list] = {}
        self.leaving: dict[int, list[Rest]] = {}  # REST by sub-master, valid from its WAITS on

    def handle(self, leaf: int) -> None:
        self.resting.discard(leaf)  # a waiting sub-master comes back after validating
        super().handle(leaf)

    def from_sub_master(self, leaf: int, kind: int, numbers: list[float]) -> None:
        if kind == Kind.WAITS:
            self.resting.add(leaf)
            self._take_counts(leaf)
            if leaf in self.empty:
                self.left += self.leaving.pop(leaf, ())
                self.ledger.close(leaf)
        elif kind == Kind.UNDONE:
            self.ledger.say(leaf, numbers)
        elif kind == Kind.ENDED:
            self.ended.setdefault(int(numbers[0]), set()).add(leaf)
        elif kind == Kind.COUNTS:
            self.counts.setdefault(leaf, []).append(numbers)
        elif kind == Kind.LOST:
            rank = int(numbers[0])
            self.gone.append(rank)
            self.lost.append(f"the worker on rank {rank} of {self.who(leaf)} is lost")
        elif kind == Kind.LEFT:
            self.empty.add(leaf)
            for validation in self.validations:
                validation.lose(leaf)
            if not self.validators:
                raise TrainingError(f"no worker is left to train: {self.lost[-1]}")
        elif kind == Kind.REST:
            self.leaving.setdefault(leaf, []).append(Rest.of_words(numbers))

    def order_for(self, leaf: int) -> list[float] | None:
        if self.final is not None:
            return [Order.DONE]
        if self.left and leaf not in self.empty:
            rest = self.left.popleft()
            self.ledger.adopted(leaf, rest)
            self.resting.discard(leaf)
            self.ended.get(rest.epoch, set()).discard(leaf)
            return [Order.ADOPT, *rest]
        return None if leaf in self.resting else [Order.GO_ON]

    def _push(self, leaf: int) -> int:
        staleness = super()._push(leaf)
        self.ledger.enter(leaf)
        return staleness

    def _count(self, leaf: int, report: Report, staleness: int | None) -> None:
        if report.kind == Kind.REPORT:
            self.reports.setdefault(leaf, []).append(report)
            return
        self._take_counts(leaf)
        both = [report, *self.reports.pop(leaf, ())]
        for one in both:
            self._sum_up(leaf, one, staleness)
        self._step(reduce(Report.plus, both))

    def _take_counts(self, leaf: int) -> None:
        for what, *pairs in self.counts.pop(leaf, ()):
            into = self.shares if what else self.staleness
            for number, count in zip(pairs[::2], pairs[1::2], strict=True):
                if count:  # zeros are padding
                    into[int(number)] += int(count)

    def serve_round(self) -> None:
        for leaf in self.round:  # before the update, after which a callback may end the run
            self.ledger.enter(leaf)
        super().serve_round()

    def undone(self) -> list[dict]:
        return self.ledger.save(self.next_epoch, self.left)

    def round_is_complete(self) -> bool:
        return bool(self.round) and set(self.open) - self.resting <= self.round.keys()

    def complete(self) -> list[int]:
        open_ = set(self.open) - (
            self.empty & self.resting
        )  # the subtracted ones have reported what they leave
        left = {rest.epoch for rest in self.left}
        found = []
        while self.next_epoch not in left and open_ <= self.ended.get(self.next_epoch, set()):
            if self.next_epoch not in self.ended:  # no sub-master is open
                break
            del self.ended[self.next_epoch]
            found.append(self.next_epoch)
            self.next_epoch += 1
        return found

    @property
    def over(self) -> bool:
        return set(self.open) <= self.resting and not self.left

    @property
    def validators(self) -> int:
        return len(set(self.open) - self.empty)

    def to_validate(self, leaf: int) -> list[float] | None:
        return None if leaf in self.empty else super().to_validate(leaf)

    def lose(self, leaf: int, why: str) -> None:
        if leaf in self.open and self.final is None:
            raise TrainingError(f"{self.who(leaf)} failed, and its workers with it: {why}")
        super().lose(leaf, why)

    def who(self, leaf: int) -> str:
        return f"the sub-master on rank {self.ranks[leaf]}"
