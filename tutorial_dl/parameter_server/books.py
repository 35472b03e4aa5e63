"""What the master at the top knows of the work of each group: for a checkpoint with sub-masters.

A group hands its work out by itself, and is ahead of what the master's weights have of it: by what
its workers did since its last exchange with the master. So it says before every exchange what will
not be done with it, and that is entered when the exchange is in the weights:

    sub-master:   UNDONE  UNDONE ...  RELAY          master:  `say`, `say` ..., `enter`

What one group leaves to another is in neither's word while it is handed over; it is noted here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from math import inf

from .tasks import Rest

PIECES = 2  # of work that fit into a message
WORDS = len(Rest._fields)


def words_of(tasks, adopted: list[Rest]) -> list[list[int]]:
    """What a sub-master says: numbers of messages, each with its number and the epochs begun."""
    rests = [*tasks.undone(), *adopted]
    parts = [rests[i : i + PIECES] for i in range(0, len(rests), PIECES)] or [[]]
    return [[n, tasks.begun, *chain(*some)] for n, some in enumerate(parts)]


class Books:
    """Of all groups.

    Args:
        tasks: {group: what it has to do}, as the group itself has it when it begins.
    """

    def __init__(self, tasks: dict):
        self.tasks = tasks
        # {group: (epochs before this one have begun, what it has not done of them)}
        self.pages = {group: (its.begun, its.undone()) for group, its in tasks.items()}
        self.said: dict[int, tuple[int, list[Rest]]] = {}  # to be entered
        self.closed_at = 0  # epochs begun by groups that will do no more

    def say(self, group: int, words) -> None:
        """One message of `words_of`."""
        number, begun = int(words[0]), int(words[1])
        if number == 0:
            self.said[group] = begun, []
        pieces = (words[i : i + WORDS] for i in range(2, 2 + PIECES * WORDS, WORDS))
        rests = (Rest.of_words(piece) for piece in pieces if len(piece) == WORDS)
        self.said[group][1].extend(rest for rest in rests if rest.count)  # (zeros fill it)

    def enter(self, group: int) -> None:
        """An exchange of `group` is in the weights."""
        if group in self.said:
            self.pages[group] = self.said.pop(group)

    def adopted(self, group: int, rest: Rest) -> None:
        """`group` is told to do `rest`; what it has said and not entered does not have it."""
        for page in (self.pages[group], self.said.get(group)):
            if page is not None:
                page[1].append(rest)

    def close(self, group: int) -> None:
        """`group` will do no more, and what it leaves is to be adopted."""
        if self.pages[group][0] == inf:
            return
        self.closed_at = max(self.closed_at, self.pages[group][0])
        self.pages[group] = inf, []  # no epoch is one that it has yet to begin

    def save(self, first: int, left: Iterable[Rest]) -> list[dict]:
        """What is not done of the epochs from `first` on that anybody has begun; as tasks save it.

        `left`: what is to be adopted.
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
