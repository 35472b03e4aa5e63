"""`Ledger`: the top master's record of each group's remaining work, for checkpoints.

A group hands out its own work. It is ahead of the top master's weights by the updates since its
last exchange. So before every exchange a sub-master reports the work that will still be undone
after it, and the master enters that once the exchange is in its weights:

    sub-master:   UNDONE  UNDONE ...  RELAY          master:  `say`, `say` ..., `enter`

Work that one group leaves to another is in neither group's report during the handover, so it is
recorded here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from math import inf

from .tasks import Rest

PIECES = 2  # pieces of work that fit in a message
WORDS = len(Rest._fields)


def words_of(tasks, adopted: list[Rest]) -> list[list[int]]:
    """A sub-master's UNDONE messages: each has its number, the epochs begun, and pieces of work."""
    rests = [*tasks.undone(), *adopted]
    parts = [rests[i : i + PIECES] for i in range(0, len(rests), PIECES)] or [[]]
    return [[n, tasks.begun, *chain(*some)] for n, some in enumerate(parts)]


class Ledger:
    """The remaining work of all groups.

    Args:
        tasks: {group: its tasks}, as the group itself has them when it begins.
    """

    def __init__(self, tasks: dict):
        self.tasks = tasks
        # {group: (number of epochs begun, their work that is not done)}
        self.pages = {group: (its.begun, its.undone()) for group, its in tasks.items()}
        self.said: dict[int, tuple[int, list[Rest]]] = {}  # reported, not yet entered
        self.closed_at = 0  # epochs begun by groups that have ended

    def say(self, group: int, words) -> None:
        """Record one message of `words_of`."""
        number, begun = int(words[0]), int(words[1])
        if number == 0:
            self.said[group] = begun, []
        pieces = (words[i : i + WORDS] for i in range(2, 2 + PIECES * WORDS, WORDS))
        rests = (Rest.of_words(piece) for piece in pieces if len(piece) == WORDS)
        self.said[group][1].extend(rest for rest in rests if rest.count)  # zeros are padding

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
