"""`HierarchicalMaster`: the master above sub-masters, which hand out work and report results.

Its `Ledger` records each group's remaining work, for checkpoints. A group hands out its own work.
It is ahead of the top master's weights by the updates since its last exchange. So before every
exchange a sub-master reports the work that will still be undone after it, and the master enters
that once the exchange is in its weights:

    sub-master:   UNDONE  UNDONE ...  PUSH           master:  `say`, `say` ..., `enter`

Work that one group leaves to another is in neither group's report during the handover, so it is
recorded here.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from functools import reduce
from math import inf

from ..errors import TrainingError
from .messages import PIECES, Answer, Kind, Order, Report, Undone
from .tasks import Rest
from .top_master import TopMaster


def undone(tasks, adopted: list[Rest]) -> list[Undone]:
    """The messages in which a sub-master reports the work that is not done."""
    rests = (*tasks.undone(), *adopted)
    parts = [rests[i : i + PIECES] for i in range(0, len(rests), PIECES)] or [()]
    return [Undone(number, tasks.begun, some) for number, some in enumerate(parts)]


class Ledger:
    """The remaining work of all groups; `tasks` are those that each group itself begins with."""

    def __init__(self, tasks: dict):
        self.tasks = tasks
        # {group: (number of epochs begun, their work that is not done)}
        self.pages = {group: (its.begun, its.undone()) for group, its in tasks.items()}
        self.said: dict[int, tuple[int, list[Rest]]] = {}  # reported, not yet entered
        self.closed_at = 0  # epochs begun by groups that have ended

    def say(self, group: int, said: Undone) -> None:
        """Record one message of `undone`."""
        if said.number == 0:
            self.said[group] = said.begun, []
        self.said[group][1].extend(said.rests)

    def enter(self, group: int) -> None:
        """Enter the report of `group`, because its exchange is in the weights."""
        if group in self.said:
            self.pages[group] = self.said.pop(group)

    def adopted(self, group: int, rest: Rest) -> None:
        """Add `rest`, which `group` is told to do, also to its report that is not yet entered."""
        for page in (self.pages[group], self.said.get(group)):
            if page is not None:
                page[1].append(rest)

    def close(self, group: int) -> None:
        """Close `group`, which has ended; other groups adopt what it leaves."""
        if self.pages[group][0] == inf:
            return
        self.closed_at = max(self.closed_at, self.pages[group][0])
        self.pages[group] = inf, []  # inf: it begins no further epoch

    def save(self, first: int, left: Iterable[Rest]) -> list[dict]:
        """The work not done in begun epochs from `first` on, in the format of the tasks' `save`.

        `left`: work that no group has adopted yet.
        """
        last = max([self.closed_at, *(begun for begun, _ in self.pages.values() if begun < inf)])
        known = [rest for _, rests in self.pages.values() for rest in rests] + list(left)
        saved = []
        for epoch in range(first, last):
            rests = [rest for rest in known if rest.epoch == epoch]
            for group, (begun, _) in self.pages.items():
                rests += self.tasks[group].of_epoch(epoch) if begun <= epoch else []
            saved.append(next(iter(self.tasks.values())).entry(epoch, rests))
        return saved


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
        # Records by sub-master and kind: REPORT and COUNTS are valid from its next exchange on,
        # REST from its WAITS on
        self.said: defaultdict[tuple[int, int], list] = defaultdict(list)

    def handle(self, leaf: int) -> None:
        self.resting.discard(leaf)  # a waiting sub-master comes back after validating
        super().handle(leaf)

    def from_sub_master(self, leaf: int, kind: int, record) -> None:
        if kind in (Kind.REPORT, Kind.COUNTS, Kind.REST):
            self.said[leaf, kind].append(record)
        elif kind == Kind.WAITS:
            self.resting.add(leaf)
            self._take_counts(leaf)
            if leaf in self.empty:
                self.left += self.said.pop((leaf, Kind.REST), ())
                self.ledger.close(leaf)
        elif kind == Kind.UNDONE:
            self.ledger.say(leaf, record)
        elif kind == Kind.ENDED:
            self.ended.setdefault(record.epoch, set()).add(leaf)
        elif kind == Kind.LOST:
            self.gone.append(record.rank)
            self.lost.append(f"the worker on rank {record.rank} of {self.who(leaf)} is lost")
        elif kind == Kind.LEFT:
            self.empty.add(leaf)
            for validation in self.validations:
                validation.lose(leaf)
            if not self.validators:
                raise TrainingError(f"no worker is left to train: {self.lost[-1]}")

    def order_for(self, leaf: int) -> Answer | None:
        if self.final is not None:
            return Answer(Order.DONE)
        if self.left and leaf not in self.empty:
            rest = self.left.popleft()
            self.ledger.adopted(leaf, rest)
            self.resting.discard(leaf)
            self.ended.get(rest.epoch, set()).discard(leaf)
            return Answer(Order.ADOPT, about=rest)
        return None if leaf in self.resting else Answer(Order.GO_ON)

    def _push(self, leaf: int) -> int:
        staleness = super()._push(leaf)
        self.ledger.enter(leaf)
        return staleness

    def _count(self, leaf: int, report: Report) -> Report:
        self._take_counts(leaf)
        both = [report, *self.said.pop((leaf, Kind.REPORT), ())]
        for one in both:
            super()._count(leaf, one)
        return reduce(Report.plus, both)

    def _take_counts(self, leaf: int) -> None:
        for counts in self.said.pop((leaf, Kind.COUNTS), ()):
            into = self.shares if counts.of_ranks else self.staleness
            for number, count in counts.pairs:
                into[number] += count

    def serve_round(self) -> None:
        for leaf in self.round:  # before the update, after which a callback may end the run
            self.ledger.enter(leaf)
        super().serve_round()

    def undone(self) -> list[dict]:
        return self.ledger.save(self.next_epoch, self.left)

    def round_is_complete(self) -> bool:
        return bool(self.round) and set(self.open) - self.resting <= self.round.keys()

    def complete(self) -> list[int]:
        gone = self.empty & self.resting  # they have reported what they leave
        open_ = set(self.open) - gone
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

    def to_validate(self, leaf: int) -> Answer | None:
        return None if leaf in self.empty else super().to_validate(leaf)

    def lose(self, leaf: int, why: str) -> None:
        if leaf in self.open and self.final is None:
            raise TrainingError(f"{self.who(leaf)} failed, and its workers with it: {why}")
        super().lose(leaf, why)

    def who(self, leaf: int) -> str:
        return f"the sub-master on rank {self.ranks[leaf]}"
