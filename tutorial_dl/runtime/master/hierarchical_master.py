"""`HierarchicalMaster`: the master above sub-masters, of which each has a group of workers.

It hands out the work of all groups. A sub-master asks for a task for each of its workers, in longer
pieces than a worker would; with its next exchange it reports what of them is done. In synchronous
forms it gets a task for the group, which shares each batch of a round with the other groups. If all
workers of a group are lost, what it had is left again, as with any worker.
"""

from collections import defaultdict
from functools import reduce

from ..errors import TrainingError
from .messages import Answer, Kind, Order, Report
from .top_master import TopMaster

AHEAD = 16  # tasks of a worker that its sub-master gets at once


class HierarchicalMaster(TopMaster):
    """The top master of sub-masters.

    Its `tasks` are for workers (leaf, rank), in synchronous forms for leaves; leaves hold them.
    """

    relayed = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.wants: dict[int, int] = {}  # sub-master -> rank of the worker that it asks for
        self.resting: set[int] = set()  # sub-masters with nothing left to hand out
        self.empty: set[int] = set()  # sub-masters without workers
        # Records by sub-master and kind, valid from its next exchange on
        self.said: defaultdict[tuple[int, int], list] = defaultdict(list)

    def handle(self, leaf: int) -> None:
        self.resting.discard(leaf)  # a waiting sub-master comes back after validating
        self.wants.pop(leaf, None)
        super().handle(leaf)

    def from_sub_master(self, leaf: int, kind: int, record) -> None:
        if kind in (Kind.REPORT, Kind.COUNTS):
            self.said[leaf, kind].append(record)
        elif kind == Kind.WANTS:
            self.wants[leaf] = record.rank
        elif kind == Kind.WAITS:
            self.resting.add(leaf)
            self._take_counts(leaf)
        elif kind == Kind.LOST:
            self.gone.append(record.rank)
            self.lost.append(f"the worker on rank {record.rank} of {self.who(leaf)} is lost")
            self.tasks.lose((leaf, record.rank))
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
        task = None
        if self.rule.synchronous:
            task = self.tasks.next(leaf)
        elif leaf in self.wants:
            worker = leaf, self.wants.pop(leaf)
            task = self.tasks.next(worker, leaf, AHEAD * self.rule.every)
        if task is None and leaf in self.resting and not self._has_work(leaf):
            return None
        self.resting.discard(leaf)
        return Answer(Order.GO_ON) if task is None else Answer(Order.TRAIN, about=task)

    def _has_work(self, leaf: int) -> bool:
        """Whether there is a task for a worker of this group, for which it has to ask."""
        if self.rule.synchronous:
            return False
        return any(self.tasks.ready(worker) for worker in self.tasks.workers if worker[0] == leaf)

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
