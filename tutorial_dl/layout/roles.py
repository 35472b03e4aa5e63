"""`Role`: what a rank does, and which ranks it works with."""

from collections.abc import Sequence
from typing import NamedTuple


class Role(NamedTuple):
    rank: int
    role: str  # "coordinator", "master", "sub_master" or "worker"
    group: int | None  # parameter set of the search; None for the coordinator
    fold: int | None  # fold of the cross-validation; None for the coordinator
    master: int | None  # the rank that its updates go to; None if there is none above
    worker: int | None  # number in its group and fold; None for ranks that compute no gradients
    device: int | None  # number in its worker; device 0 exchanges with the master; None as above


def hub_ranks(roles: Sequence[Role], rank: int) -> list[int]:
    """The star whose hub is `rank`: `rank` itself, then the ranks that exchange with it directly.

    The leaves of a master are the first ranks of its workers (device 0), or its sub-masters; those
    of the coordinator are the first ranks of all groups and folds. A worker has no leaves: [rank].

    >>> from tutorial_dl.layout import Layout
    >>> hub_ranks(Layout(masters=2, workers=2, devices=2).roles(), 0)
    [0, 1, 6]
    >>> hub_ranks(Layout(masters=2, workers=2, devices=2).roles(), 6)
    [6, 7, 9]
    """
    if roles[rank].role == "coordinator":
        tops = (r for r in roles if r.master is None and r.group is not None)
        firsts: dict[tuple, int] = {}
        for one in tops:
            firsts.setdefault((one.group, one.fold), one.rank)
        return [rank, *firsts.values()]
    return [rank, *(r.rank for r in roles if r.master == rank and not r.device)]


def worker_ranks(roles: Sequence[Role], rank: int) -> list[int]:
    """The ranks that compute one batch together with `rank`, by device.

    These are the ranks of its worker or, without a master, all ranks of its group and fold, which
    train synchronously. A master computes nothing: [].

    >>> from tutorial_dl.layout import Layout
    >>> worker_ranks(Layout(masters=1, workers=2, devices=3).roles(), 5)
    [4, 5, 6]
    """
    own = roles[rank]
    if own.worker is None:
        return []
    together = [
        r
        for r in roles
        if r.worker is not None and (r.group, r.fold) == (own.group, own.fold)
        if own.master is None or r.worker == own.worker
    ]
    return [r.rank for r in sorted(together, key=lambda r: (r.worker, r.device))]
