"""Checks for the exercises of notebook 15, hierarchies."""

from tutorial_dl.layout import Layout

from . import NotYet, call, must_have, must_return

# Exercise 2: available ranks; samples and seconds per gradient on a rank; seconds to serve one
# exchange; updates of a group per relay. Then the limits: batch per worker, speed, unseen updates.
RANKS, SAMPLES, COMPUTE, SERVE, UPWARD = 40, 32, 0.040, 0.004, 8
BATCH, SPEED, UNSEEN = 64, 20_000, 23


def path(answer) -> str:
    """Exercise 1: the ranks on a gradient's path, from the one that computed it to the top."""
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
    return "through the worker's device 0, its master, and the top master"


def _path(roles: list, rank: int) -> list[int]:
    own = roles[rank]
    block = [r for r in roles if (r.group, r.fold) == (own.group, own.fold)]
    passed = [rank] + [r.rank for r in block if r.worker == own.worker and r.device == 0]
    while roles[passed[-1]].master is not None:
        passed.append(roles[passed[-1]].master)
    return list(dict.fromkeys(passed))


def _compare(found, right: list[int], layout: Layout, role) -> None:
    where = str(layout).splitlines()[0].split(":")[0]
    what = f"{where}: from rank {role.rank} (worker {role.worker}, device {role.device})"
    must_return(found)
    try:
        found = [int(rank) for rank in found]
    except (TypeError, ValueError):
        raise NotYet(f"a list of ranks is needed, got {found!r}") from None
    if found != right:
        told = f"{what} the path is {right}, got {found}"
        if len(set(found)) < len(found):
            told += "; list each rank once"
        raise NotYet(told)


def choice(answer) -> str:
    """Exercise 2: a layout that fits the ranks, is fast enough and leaves few updates unseen."""
    must_have(answer, 3, "three numbers: masters, workers per master, ranks per worker")
    try:
        layout = Layout(masters=answer[0], workers=answer[1], devices=answer[2])
    except ValueError as error:
        raise NotYet(error) from None
    if layout.masters == 0:
        raise NotYet("masters must be at least 1, got 0; without one nothing is asynchronous")
    if layout.ranks > RANKS:
        raise NotYet(f"your layout needs {layout.ranks} ranks; there are {RANKS}")
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
        return min(workers / (compute + serve), 1 / serve)
    each = serve * (1 + 1 / upward)
    return min(workers / (compute + each), masters / each, upward / serve)


def not_seen(masters: int, workers: int, upward: int) -> int:
    """Updates, on average, that a gradient's weights do not contain when the gradient is ready.

    `workers` workers in all, in turn: each other worker has had one turn. And from each other group
    are missing the updates since this group's last relay, and those that the other group had not
    relayed by then: half an interval each.
    """
    return workers - 1 + (masters - 1) * upward
