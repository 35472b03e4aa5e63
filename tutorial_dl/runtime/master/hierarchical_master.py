"""`HierarchicalMaster`: the master above sub-masters, of which each has a group of workers.

To this master, a group is one worker: it has a column of an epoch, which it gets at once and
divides into columns of its own workers; in synchronous forms, its share of a round. Any answer to a
sub-master may bring the next, so a group that has work need not ask for more. With its
vectors it reports what of that is done. If all workers of a group are lost, what is not done is
left again, as with any worker.
"""

from collections import defaultdict
from functools import reduce

from ..errors import TrainingError
from .messages import Answer, Kind, Order, Report
from .top_master import TopMaster


class HierarchicalMaster(TopMaster):
    """The top master of sub-masters, which are the workers of its `tasks`."""

    relayed = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.resting: set[int] = set()  # sub-masters with nothing left to hand out
        self.empty: set[int] = set()  # sub-masters without workers
        # Records by sub-master and kind, valid from its next exchange on
        self.said: defaultdict[tuple[int, int], list] = defaultdict(list)

    def handle(self, leaf: int) -> None:
        self.resting.discard(leaf)  # a waiting sub-master comes back after validating
        super().handle(leaf)

    def from_sub_master(self, leaf: int, kind: int, record) -> None:
        if kind in (Kind.REPORT, Kind.COUNTS):
            self.said[leaf, kind].append(record)
        elif kind == Kind.WAITS:
            self.resting.add(leaf)
            self._take_counts(leaf)
        elif kind == Kind.LOST:
            self.gone.append(record.rank)
            self.lost.append(f"the worker on rank {record.rank} of {self.who(leaf)} is lost")
        elif kind == Kind.LEFT:
            self.empty.add(leaf)
            self.tasks.lose(leaf)
            self.tasks.give_back(leaf)
            for validation in self.validations:
                validation.lose(leaf)
            if not self.validators:
                raise TrainingError(f"no worker is left to train: {self.lost[-1]}")

    def order_for(self, leaf: int) -> Answer | None:
        if self.final is not None:
            return Answer(Order.DONE)
        task = self.tasks.next(leaf)
        if task is None and leaf in self.resting:
            return None
        self.resting.discard(leaf)
        return Answer(Order.GO_ON) if task is None else Answer(Order.TRAIN, about=task)

    def _count(self, leaf: int, report: Report) -> Report:
        self._take_counts(leaf)
        reports = [report, *self.said.pop((leaf, Kind.REPORT), ())]
        done = [(one.epoch, *ends) for one in reports for ends in one.done]
        self.tasks.done(leaf, None if self.rule.synchronous else done)
        for one in reports:
            self._add(leaf, one)
        return reduce(Report.plus, reports)

    def _take_counts(self, leaf: int) -> None:
        for counts in self.said.pop((leaf, Kind.COUNTS), ()):
            into = self.shares if counts.of_ranks else self.staleness
            for number, count in counts.pairs:
                into[number] += count

    @property
    def over(self) -> bool:
        return set(self.open) <= self.resting

    @property
    def validators(self) -> int:
        return len(set(self.open) - self.empty)

    def to_validate(self, leaf: int) -> Answer | None:
        return None if leaf in self.empty else super().to_validate(leaf)

    def lose(self, leaf: int, why: str) -> None:
        if leaf in self.open and self.final is None:
            raise TrainingError(f"{self.who(leaf)} failed, and its workers with it: {why}")
        super().lose(leaf, why)

    def who(self, leaf: int) -> str:
        return f"the sub-master on rank {self.ranks[leaf]}"
