"""Checks of a schedule before it runs: `check` names the first wrong action, `held` counts memory.

A schedule is right if every rank does each F, B and W once, in this order for each micro-batch;
receives what it needs before it needs it, and sends what others need after it has computed it; and
if no rank waits for ever.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from tutorial_dl.model_parallel.schedules import Action, Schedule, ScheduleError
from tutorial_dl.model_parallel.simulating import played


def check(schedule: Schedule) -> Schedule:
    """Return the schedule; raises ScheduleError, which names the first wrong action and its place.

    Ranks are looked at in order, each on its own at first; then whether they can run together.
    """
    for rank in range(len(schedule.ranks)):
        _check_rank(schedule, rank)
    _, done = played(schedule)
    if any(i < len(actions) for i, actions in zip(done, schedule.ranks, strict=True)):
        raise _deadlock(schedule, done)
    return schedule


def _first_wrong(schedule: Schedule, rank: int) -> tuple[int, str]:
    """The place of the first action that a rank can't do, and why; "" if there is none."""
    done: dict[Action, int] = {}
    for place, action in enumerate(schedule.ranks[rank]):
        if why := _wrong(schedule, rank, action, done):
            return place, why
        done[action] = place
    return len(done), ""


def _check_rank(schedule: Schedule, rank: int) -> None:
    actions = schedule.ranks[rank]
    place, why = _first_wrong(schedule, rank)
    if why:
        words = f"rank {rank}, action {place} ({actions[place]}): {why}"
        raise ScheduleError(words, (rank, place), why)
    for chunk, batch, kind in product(range(schedule.chunks), range(schedule.batches), "FBW"):
        whole = [Action(kind, batch, chunk)]
        sent = Action(kind, batch, chunk, "send")
        if kind != "W" and schedule.peer(rank, sent) is not None:
            whole.append(sent)
        for action in whole:
            if action not in actions:
                raise ScheduleError(
                    f"rank {rank} never does {action}: each rank needs F, B and W of each "
                    "micro-batch, and sends what its neighbours need",
                    (rank, len(actions)),
                )


def _wrong(schedule: Schedule, rank: int, action: Action, done: dict[Action, int]) -> str:
    """Why a rank can't do this action after those in `done`, action -> index; "" if it can."""
    if action.batch >= schedule.batches or action.chunk >= schedule.chunks:
        return (
            f"there are micro-batches 0 to {schedule.batches - 1}, and chunks 0 to "
            f"{schedule.chunks - 1}"
        )
    if action in done:
        return f"it was already done, as action {done[action]}"
    if action.message and schedule.peer(rank, action) is None:
        stage = schedule.stage(rank, action.chunk)
        return f"stage {stage} of {schedule.stages} has no such neighbour on another rank"
    for needed, why in _needs(schedule, rank, action):
        if needed not in done:
            return f"{why}, so {needed} must come before it"
    return ""


def _needs(schedule: Schedule, rank: int, action: Action) -> list[tuple[Action, str]]:
    """What must come earlier on the same rank, and why."""
    kind, batch, chunk = action.kind, action.batch, action.chunk
    if action.message == "recv":
        return []
    if action.message == "send":
        return [(Action(kind, batch, chunk), "only what has been computed can be sent")]
    needs = []
    if kind == "B":
        needs.append((Action("F", batch, chunk), "B needs the activations of F"))
    if kind == "W":
        return [(Action("B", batch, chunk), "W needs the gradients that B passes through")]
    if schedule.peer(rank, action) is not None:
        source = "inputs come" if kind == "F" else "gradient comes"
        needs.append((Action(kind, batch, chunk, "recv"), f"its {source} from another rank"))
    else:
        stage = schedule.stage(rank, chunk) + (-1 if kind == "F" else 1)
        if 0 <= stage < schedule.stages:  # on this rank
            other = schedule.place(stage)[1]
            needs.append((Action(kind, batch, other), f"it continues stage {stage}"))
    return needs


def as_far_as_it_runs(schedule: Schedule) -> Schedule:
    """Of any schedule, the part that can run: up to a wrong action, or to an endless wait.

    Rank r stops before its action number `len(result.ranks[r])`, if it has so many.
    """
    right = [
        actions[: _first_wrong(schedule, rank)[0]] for rank, actions in enumerate(schedule.ranks)
    ]
    shorter = replace(schedule, ranks=tuple(right))
    _, done = played(shorter)
    ranks = tuple(actions[:i] for actions, i in zip(right, done, strict=True))
    return replace(schedule, ranks=ranks)


def _deadlock(schedule: Schedule, at: list[int]) -> ScheduleError:
    waits = {r: a[i] for r, (i, a) in enumerate(zip(at, schedule.ranks, strict=True)) if i < len(a)}
    rank, chain = min(waits), []
    while rank in waits and rank not in chain:
        chain.append(rank)
        rank = schedule.peer(rank, waits[rank])[0]
    if rank in chain:  # leave out those that only wait for the circle
        chain = chain[chain.index(rank) :]
    words = []
    for one in chain:
        other, needed = schedule.peer(one, waits[one])
        later = needed in schedule.ranks[other]
        what = "comes later" if later else "never comes"
        words.append(
            f"rank {one} waits in action {at[one]} ({waits[one]}) for {needed} of rank {other}, "
            f"which {what}"
        )
    circle = tuple((one, at[one]) for one in chain)
    return ScheduleError(f"deadlock: {'; '.join(words)}", circle=circle)


def held(schedule: Schedule) -> list[int]:
    """For each rank, the most micro-batches whose activations it holds at the same time.

    A stage's activations are held from F until both B and W are done.
    """
    peaks = []
    for rank in range(len(schedule.ranks)):
        now = most = 0
        left: dict[tuple[int, int], int] = {}
        for action in schedule.computed(rank):
            of = action.batch, action.chunk
            if action.kind == "F":
                now, left[of] = now + 1, 2
                most = max(most, now)
            elif of in left:
                left[of] -= 1
                now -= left[of] == 0
        peaks.append(most)
    return peaks
