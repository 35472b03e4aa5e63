"""The numbers of a layout, and how many ranks they make; if none fit, the nearest that do."""

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from itertools import count
from numbers import Integral
from typing import Self

from tutorial_dl.words import counted

DERIVED = ("workers", "devices", "masters")  # the first one that is not given is computed
MOST = 100_000  # ranks
SHOWN = 2  # how many layouts with exactly the right number of ranks a message names
LEAST = {"groups": 1, "folds": 1, "masters": 0, "workers": 1, "devices": 1}


@dataclass(frozen=True)
class Counts:
    """How many of each role there are; `Layout` says which rank has which."""

    groups: int = 1
    folds: int = 1
    masters: int = 1
    workers: int = 1
    devices: int = 1
    search: bool | None = None

    def __post_init__(self):
        for name, least in LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
            object.__setattr__(self, name, int(value))
        many = self.groups > 1 or self.folds > 1
        if self.search is None:
            object.__setattr__(self, "search", many)
        elif many and not self.search:
            raise ValueError(
                f"groups {self.groups} x folds {self.folds} without a search: set search=True, or "
                "groups and folds to 1"
            )

    @property
    def workers_each(self) -> int:
        """Workers per group and fold."""
        return max(self.masters, 1) * self.workers

    @property
    def ranks_each(self) -> int:
        """Ranks per group and fold."""
        masters = self.masters + (self.masters >= 2)  # one more, above sub-masters
        return masters + self.workers_each * self.devices

    @property
    def ranks(self) -> int:
        return int(self.search) + self.groups * self.folds * self.ranks_each

    @property
    def nodes_in_talk(self) -> int:
        """Number of nodes as NNLO's talk counts them: always a coordinator, but no masters."""
        return 1 + self.groups * self.folds * self.workers_each * self.devices

    @classmethod
    def for_ranks(
        cls,
        ranks: int,
        masters: int | None = None,
        workers: int | None = None,
        devices: int | None = None,
        groups: int = 1,
        folds: int = 1,
    ) -> Self:
        """The layout of an asynchronous run on `ranks` ranks, masters included.

        One number that is not given is computed from the others: workers; if that is given,
        devices; if both are given, masters. Other numbers default to 1, so `for_ranks(p)` has one
        master and p - 1 workers.

        Raises:
            ValueError: If no layout of that many ranks has these numbers; the message names the
                nearest that do.

        >>> Layout.for_ranks(7, devices=2)
        Layout(groups=1, folds=1, masters=1, workers=3, devices=2, search=False)
        """
        check_bound(ranks)
        said = {"masters": masters, "workers": workers, "devices": devices}
        said = {name: value for name, value in said.items() if value is not None}
        smallest = cls(groups, folds, **said)
        if smallest.masters and not smallest.search and ranks < 2:
            raise ValueError(
                f"{counted(ranks, 'rank')}, but an asynchronous run needs a master and a worker: "
                f"at least {smallest.ranks} ranks"
            )
        missing = next((name for name in DERIVED if name not in said), None)
        if missing is None:
            smallest.check_ranks(ranks)
            return smallest
        ways = list(_varied(smallest, missing, ranks, lowest=1))
        for layout in ways:
            if layout.ranks == ranks:
                return layout
        # Another value of a given number, with the missing one computed to match, would do as well.
        lowest = min(smallest.masters, 1)
        others = [
            way
            for name in said
            for other in _varied(smallest, name, ranks, lowest if name == "masters" else 1)
            for way in _varied(other, missing, ranks, lowest=1)
        ]
        among = {"groups": groups, "folds": folds} if smallest.search else {}
        told = " x ".join(f"{name} {value}" for name, value in (among | said).items())
        near = ", or ".join(filter(None, (_next_to(ranks, ways), _exact(ranks, smallest, others))))
        raise ValueError(
            f"{counted(ranks, 'rank')} can't be {told}, for any number of {missing}; nearest that "
            f"fit: {near}"
        )

    def check_ranks(self, ranks: int) -> None:
        """Raise ValueError unless this layout needs `ranks` ranks; names the nearest that fit."""
        if ranks == self.ranks:
            return
        names = ["masters", "workers", "devices", *(["groups", "folds"] if self.search else [])]
        lowest = {"masters": min(self.masters, 1)}  # 0 masters would be another way of training
        varied = (x for name in names for x in _varied(self, name, ranks, lowest.get(name, 1)))
        others = [x for x in varied if x != self]
        near = _exact(ranks, self, others)
        if others and not near:
            near = f"nearest that fit: {_next_to(ranks, others)}"
        told = f"{counted(ranks, 'rank')}, but {in_words(self)} need {self.ranks}"
        raise ValueError("; ".join(filter(None, (told, near))))


def in_words(layout: Counts) -> str:
    """'masters 2 x workers 3 x devices 2', with groups and folds if there is a search."""
    names = ["groups", "folds"] if layout.search else []
    return " x ".join(
        f"{n} {getattr(layout, n)}" for n in [*names, "masters", "workers", "devices"]
    )


# Layouts for a given number of ranks -----------------------------------------------------------


def check_bound(ranks: int) -> None:
    """Raise ValueError for more ranks than can be listed quickly."""
    if ranks > MOST:
        raise ValueError(f"ranks must be at most {MOST}, got {ranks}")


def _varied(layout: Counts, name: str, ranks: int, lowest: int) -> Iterator[Counts]:
    """`layout` with other values of `name`, up to the first that needs more than `ranks`."""
    for value in count(lowest):
        other = replace(layout, **{name: value})
        yield other
        if other.ranks > ranks:
            return


def _exact(ranks: int, wanted: Counts, layouts: Iterable[Counts]) -> str:
    """'7 fit masters 1 x ..., or ...': the layouts closest to `wanted`; '' if there are none."""

    def unlike(layout: Counts) -> int:
        pairs = zip(astuple(layout), astuple(wanted), strict=True)
        return sum(abs(a - b) for a, b in pairs)

    fitting = {layout for layout in layouts if layout.ranks == ranks}
    best = sorted(fitting, key=lambda layout: (unlike(layout), in_words(layout)))[:SHOWN]
    return f"{ranks} fit {', or '.join(map(in_words, best))}" if best else ""


def _next_to(ranks: int, layouts: Iterable[Counts]) -> str:
    """'5 ranks for masters ..., 9 ranks for ...': the next ones below and above `ranks`."""
    layouts = list(layouts)
    below = max((x for x in layouts if x.ranks < ranks), key=lambda x: x.ranks, default=None)
    above = min((x for x in layouts if x.ranks > ranks), key=lambda x: x.ranks, default=None)
    return ", ".join(f"{counted(x.ranks, 'rank')} for {in_words(x)}" for x in (below, above) if x)
