"""The numbers of a layout, and how many ranks they make."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

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
    def masters_each(self) -> int:
        """Masters and sub-masters per group and fold, M."""
        return self.masters + (self.masters >= 2)

    @property
    def workers_each(self) -> int:
        """Workers per group and fold."""
        return max(self.masters, 1) * self.workers

    @property
    def ranks_each(self) -> int:
        """Ranks per group and fold."""
        return self.masters_each + self.workers_each * self.devices

    @property
    def ranks(self) -> int:
        """Total number of ranks."""
        return int(self.search) + self.groups * self.folds * self.ranks_each

    @property
    def nodes_in_talk(self) -> int:
        """Number of nodes as NNLO's talk counts them: always a coordinator, but no masters."""
        return 1 + self.groups * self.folds * self.workers_each * self.devices


def words(layout: Counts) -> str:
    """'masters 2 x workers 3 x devices 2', with groups and folds if there is a search."""
    names = ["groups", "folds"] if layout.search else []
    return " x ".join(
        f"{n} {getattr(layout, n)}" for n in [*names, "masters", "workers", "devices"]
    )
