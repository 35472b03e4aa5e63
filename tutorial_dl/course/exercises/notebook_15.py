"""Checks of notebook 15, hierarchies."""

from __future__ import annotations

from typing import Any

from tutorial_dl.course.exercises.checking import NotYet, call
from tutorial_dl.layout import Layout

# Exercise 2: ranks there are; samples and seconds of a gradient on a rank; seconds to serve one
# exchange; updates of a group from relay to relay; and what is asked for.
RANKS, SAMPLES, COMPUTE, SERVE, UPWARD = 40, 32, 0.040, 0.004, 8
BATCH, SPEED, UNSEEN = 64, 20_000, 23


def path(answer: Any) -> str:
    """The ranks that a gradient passes, from the rank that computed it to the top."""
    layouts = (
        (Layout(masters=2, workers=2, devices=2), None),
        (Layout(masters=1, workers=3), None),
        (Layout(masters=0, workers=2, devices=2), None),
        (Layout(masters=2, workers=3, devices=2), ["a", "b", "c"] * 5),
        (Layout(groups=2, masters=2, workers=1, devices=3), None),
    )
    for layout, nodes in layouts:
        roles = layout.roles(nodes)
        for role in roles:
            if role.role == "worker":
                _compare(call(answer, roles, role.rank), _path(roles, role.rank), layout, role)
    return "through the first rank of the worker, its master, and the one above"


def _path(roles: list, rank: int) -> list[int]:
    own = roles[rank]
    block = [r for r in roles if (r.group, r.fold) == (own.group, own.fold)]
    passed = [rank] + [r.rank for r in block if r.worker == own.worker and r.device == 0]
    while roles[passed[-1]].master is not None:
        passed.append(roles[passed[-1]].master)
    return list(dict.fromkeys(passed))


def _compare(found: Any, right: list[int], layout: Layout, role: Any) -> None:
    where = str(layout).splitlines()[0].split(":")[0]
    what = f"{where}: from rank {role.rank} (worker {role.worker}, device {role.device})"
    if found is None:
        raise NotYet("the function returns nothing")
    try:
        found = [int(rank) for rank in found]
    except (TypeError, ValueError):
        raise NotYet(f"a list of ranks is asked for, not {found!r}") from None
    if found != right:
        told = f"{what} the path is {right}, yours is {found}"
        if len(set(found)) < len(found):
            told += ": each rank once"
        raise NotYet(told)


def choice(answer: Any) -> str:
    """A layout that fits the ranks, is fast enough, and has few updates unseen."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        raise NotYet("three numbers are asked for: masters, workers of each, ranks of a worker")
    try:
        layout = Layout(masters=answer[0], workers=answer[1], devices=answer[2])
    except ValueError as error:
        raise NotYet(error) from None
    if layout.masters == 0:
        raise NotYet("without a master nothing is asynchronous: 1 master or more")
    if layout.ranks > RANKS:
        raise NotYet(f"it needs {layout.ranks} ranks; there are {RANKS}")
    batch = SAMPLES * layout.devices
    if batch > BATCH:
        raise NotYet(f"a worker's batch has {batch} samples; {BATCH} at most")
    speed = batch * updates_a_second(layout.masters, layout.workers_each, UPWARD, COMPUTE, SERVE)
    if speed < SPEED:
        raise NotYet(f"{speed:,.0f} samples a second; {SPEED:,} are asked for")
    unseen = not_seen(layout.masters, layout.workers_each, UPWARD)
    if unseen > UNSEEN:
        raise NotYet(f"{unseen} updates are not seen on average; {UNSEEN} at most")
    return f"{layout.ranks} ranks, {speed:,.0f} samples a second, {unseen} updates not seen"


def updates_a_second(
    masters: int, workers: int, upward: int, compute: float, serve: float
) -> float:
    """Of all workers together, `workers` in all; upper bound from who can be busy all the time.

    One master: workers / (compute + serve), at most 1 / serve. Sub-masters: an exchange takes them
    serve (1 + 1 / upward), and the master above gets one of `upward` of them.
    """
    if masters == 1:
        return min(workers / (compute + serve), 1 / serve)
    each = serve * (1 + 1 / upward)
    return min(workers / (compute + each), masters / each, upward / serve)


def not_seen(masters: int, workers: int, upward: int) -> int:
    """Updates that are applied, or on their way up, while a gradient is made, on average.

    The other workers' turns, `workers` in all; and of the other groups, what they have done since
    this one's last relay, and what they had not relayed by then: half an interval each.
    """
    return workers - 1 + (masters - 1) * upward
