"""Checks for the exercises of notebook 15, hierarchies."""

import numpy as np

from tutorial_dl.course.foundations import regular_throughput
from tutorial_dl.layout import Layout

from . import NotYet, call, counted, must_have, whole

# Exercise 2: available ranks; samples and seconds per gradient on a rank; seconds to serve one
# exchange; updates of a group per relay. Then the limits: batch per worker, speed, unseen updates.
RANKS, SAMPLES, COMPUTE, SERVE, UPWARD = 40, 32, 0.040, 0.004, 8
BATCH, SPEED, UNSEEN = 64, 20_000, 23


def path(answer) -> str:
    """Exercise 1: the ranks on a gradient's path, from the one that computed it to the top."""
    layouts = (  # those of the notebook, with the nodes on which the last one's ranks are
        (Layout(masters=1, workers=4), None),
        (Layout(masters=1, workers=2, devices=2), None),
        (Layout(masters=2, workers=2), None),
        (Layout(masters=0, workers=4), None),
        (Layout(masters=2, workers=3, devices=2), [0, 1] * 7 + [0]),
    )
    for layout, nodes in layouts:
        roles = layout.roles(nodes)
        for role in roles:
            if role.role == "worker":
                _compare(call(answer, roles, role.rank), _path(roles, role.rank), layout, roles)
    return "through the worker's device 0, its master, and the top master"


def _path(roles: list, rank: int) -> list[int]:
    own = roles[rank]
    passed = [rank] + [r.rank for r in roles if r.worker == own.worker and r.device == 0]
    while roles[passed[-1]].master is not None:
        passed.append(roles[passed[-1]].master)
    return list(dict.fromkeys(passed))


def _compare(found, right: list[int], layout: Layout, roles: list) -> None:
    """Raise NotYet unless the path `found` is `right`: say what is missing, or too much."""
    own = roles[right[0]]
    where = str(layout).splitlines()[0].split(":")[0]
    what = f"{where}: from rank {own.rank} (worker {own.worker}, device {own.device})"
    if isinstance(found, (str, dict)) or not np.iterable(found):
        raise NotYet(f"a list of ranks is needed, got {found!r}")
    try:
        found = [whole(rank, 0, len(roles) - 1, "a rank") for rank in found]
    except NotYet as wrong:
        raise NotYet(f"{what}: {wrong}") from None
    if found == right:
        return
    got = f"{what} you have {found}"
    if len(set(found)) < len(found):
        raise NotYet(f"{got}: list each rank once")
    if found == right[::-1]:
        raise NotYet(f"{got}: begin at the rank that computed the gradient")
    if found == right[1:]:
        raise NotYet(f"{got}: the rank that computed the gradient is on the path, too")
    missing = [roles[rank] for rank in right if rank not in found]
    if any(role.device == 0 for role in missing):
        raise NotYet(f"{got}: within a worker, device 0 collects the gradients")
    if missing and missing[-1].rank == right[-1]:
        raise NotYet(f"{got}: who is above the last of these?")
    if missing:
        raise NotYet(f"{got}: there is a sub-master on the way")
    raise NotYet(f"{got}: these are not all on the way, or in another order")


def choice(answer) -> str:
    """Exercise 2: a layout that fits the ranks, is fast enough and leaves few updates unseen."""
    parts = must_have(answer, 3, "three numbers: masters, workers per master, ranks per worker")
    names = ("masters", "workers", "devices")
    counts = {
        name: whole(part, 0 if name == "masters" else 1, None, f"the number of {name}")
        for name, part in zip(names, parts, strict=True)
    }
    layout = Layout(**counts)
    if layout.masters == 0:
        raise NotYet("masters must be at least 1, got 0; without one nothing is asynchronous")
    if layout.ranks > RANKS:
        raise NotYet(f"your layout needs {counted(layout.ranks, 'rank')}; there are {RANKS}")
    batch = SAMPLES * layout.devices
    if batch > BATCH:
        raise NotYet(f"the batch of a worker must be at most {BATCH} samples, got {batch}")
    speed = batch * updates_a_second(layout.masters, layout.workers_each, UPWARD, COMPUTE, SERVE)
    if speed < SPEED:
        raise NotYet(f"the speed must be at least {SPEED:,} samples per second, got {speed:,.0f}")
    unseen = not_seen(layout.masters, layout.workers_each, UPWARD)
    if unseen > UNSEEN:
        raise NotYet(f"unseen updates must be at most {UNSEEN} on average, got {unseen}")
    return f"{layout.ranks} ranks, {speed:,.0f} samples per second, {unseen} unseen updates"


def updates_a_second(
    masters: int, workers: int, upward: int, compute: float, serve: float
) -> float:
    """Updates per second of `workers` workers in all: an upper bound, set by the busiest level.

    One master: workers / (compute + serve), at most 1 / serve. With sub-masters an exchange takes
    serve (1 + 1 / upward), and the top master serves one relay per `upward` exchanges.
    """
    if masters == 1:
        return regular_throughput(workers, compute, serve)
    each = serve * (1 + 1 / upward)
    return min(workers / (compute + each), masters / each, upward / serve)


def not_seen(masters: int, workers: int, upward: int) -> int:
    """Updates, on average, that a gradient's weights do not contain when the gradient is ready.

    `workers` workers in all, in turn: each other worker has had one turn. And from each other group
    are missing the updates since this group's last relay, and those that the other group had not
    relayed by then: half an interval each.
    """
    return workers - 1 + (masters - 1) * upward
