"""Checks of notebook 17, pipelines. `schedule` also draws the learner's schedule in a notebook."""

import re
import sys
from dataclasses import replace

from tutorial_dl.model_parallel.checking import check, held
from tutorial_dl.model_parallel.schedules import (
    Action,
    Schedule,
    ScheduleError,
    of,
    with_messages,
)
from tutorial_dl.model_parallel.simulating import Timetable, simulate

from . import NotYet, must_have, whole

STAGES, IDLE = 8, 0.1  # exercise 1: ranks, and the largest bubble
# Exercise 2: ranks, micro-batches, the most that a rank may hold, and units of time. A search
# through all schedules finds 17 units at least; 1F1B takes 18, and holds 3.
RANKS, BATCHES, HELD, UNITS, BEST = 3, 4, 2, 18, 17


def batches(answer) -> str:
    """Exercise 1: the least m for a bubble of at most IDLE, of GPipe and of ZB-H1."""
    parts = must_have(answer, 2, "two numbers: one for GPipe, one for ZB-H1")
    for name, part, work in zip(("GPipe", "ZB-H1"), parts, (1, 3), strict=True):
        _enough(whole(part, 1, None, f"micro-batches of {name}"), name, work)
    return "with B and W apart, a third of the micro-batches is enough"


def _enough(m: int, name: str, work: int) -> None:
    """`work`: of m micro-batches per m, in units of what is lost per rank."""
    idle = (STAGES - 1) / (work * m + STAGES - 1)
    if idle > IDLE:
        raise NotYet(f"{name}: with m = {m} the ranks are idle {idle:.1%} of the time")
    fewer = (STAGES - 1) / (work * (m - 1) + STAGES - 1)
    if fewer <= IDLE:
        relative = -(-(STAGES - 1) // (work * IDLE))
        if m == relative:
            raise NotYet(
                f"{name}: this is where the idle time is a tenth of the work; a tenth of the whole "
                "time is asked for"
            )
        if m == -(-9 * STAGES // work):
            raise NotYet(f"{name}: the first rank does not wait for itself: S - 1, not S")
        raise NotYet(f"{name}: m = {m} is enough, but so would be fewer")


def schedule(answer) -> str:
    """Exercise 2: 3 ranks, 4 micro-batches, at most 2 held, in at most 18 units."""
    made, by_hand = _read(answer)
    wrong = None
    try:
        check(made)
    except ScheduleError as error:
        wrong = error
    _show(made, wrong)
    if wrong is not None:
        raise NotYet(_in_words(made, wrong, by_hand))
    for rank, most in enumerate(held(made)):
        if most > HELD:
            raise NotYet(
                f"it runs, but rank {rank} holds {most} micro-batches after "
                f"{_too_many(made, rank)}; at most {HELD} are allowed, from F to W"
            )
    table = simulate(made)
    units = round(table.seconds)
    if units > UNITS:
        raise NotYet(
            f"it runs and holds no more than {HELD}, but takes {units} units of time; at most "
            f"{UNITS} are asked for. {_gap(table)}"
        )
    fastest = ", and no schedule is faster" if units == BEST else ""
    return f"{units} units of time with {HELD} micro-batches per rank{fastest}; 1F1B holds 3"


def _read(answer) -> tuple[Schedule, bool]:
    """The schedule with its messages, and whether the learner wrote these."""
    if isinstance(answer, Schedule):
        made = answer
    else:
        if isinstance(answer, str):  # as schedules are printed, a line per rank
            lines = [line for line in answer.splitlines() if line.strip()]
            answer = [re.sub(r"^\s*rank \d+:", "", line) for line in lines]
        lists = must_have(answer, RANKS, f"{RANKS} lists of actions, one per rank")
        for rank, one in enumerate(lists):
            words = one.split() if isinstance(one, str) else one
            if not isinstance(words, (list, tuple)) or not all(
                isinstance(word, (str, Action)) for word in words
            ):
                raise NotYet(f"rank {rank}: a text such as 'F0 B0 W0' is needed, got {one!r}")
            if not words:
                raise NotYet(f"rank {rank} has no actions yet")
        try:
            made = of(lists)
        except ScheduleError as error:
            raise NotYet(str(error)) from None
    if len(made.ranks) != RANKS:
        raise NotYet(f"{RANKS} ranks are asked for, yours is for {len(made.ranks)}")
    computed = tuple(tuple(made.computed(rank)) for rank in range(RANKS))
    made = replace(made, name="yours", batches=BATCHES, chunks=1)
    if _has_messages(answer):
        return made, True
    for rank, actions in enumerate(computed):
        for action in actions:
            if action.batch >= BATCHES:
                raise NotYet(
                    f"rank {rank}, {action}: there are {BATCHES} micro-batches, 0 to {BATCHES - 1}"
                )
            if action.chunk:
                raise NotYet(f"rank {rank}, {action}: each rank has one stage, so leave out the .1")
    return with_messages(replace(made, ranks=computed), sends_first=True), False


def _has_messages(answer) -> bool:
    if isinstance(answer, Schedule):
        return True
    words = " ".join(" ".join(map(str, one)) if not isinstance(one, str) else one for one in answer)
    return "send" in words or "recv" in words


def _in_words(made: Schedule, wrong: ScheduleError, by_hand: bool) -> str:
    """The first wrong action, counted as the learner wrote them."""
    if by_hand:
        return str(wrong)
    if wrong.circle:
        parts = []
        for rank, place in wrong.circle:
            waits = made.ranks[rank][place]
            other, _ = made.peer(rank, waits)
            what = Action(waits.kind, waits.batch)
            parts.append(f"rank {rank} waits before {what} for {what} of rank {other}")
        return f"deadlock: {', and '.join(parts)}, for ever"
    rank, place = wrong.place
    actions = made.computed(rank)
    before = [one for one in made.ranks[rank][:place] if not one.message]
    if len(before) == len(actions):
        return str(wrong).split(":")[0]  # "rank 1 never does W3"
    action, number = actions[len(before)], len(before) + 1
    why = wrong.why
    if action in before:
        why = f"it was already done, as action {before.index(action) + 1}"
    return f"rank {rank} goes wrong at its action {number}, {action}: {why}"


def _too_many(made: Schedule, rank: int) -> Action:
    """The first F after which a rank holds too many micro-batches."""
    holds = 0
    for action in made.computed(rank):
        holds += {"F": 1, "B": 0, "W": -1}[action.kind]
        if holds > HELD:
            return action
    raise AssertionError("the rank holds no more than allowed")


def _gap(table: Timetable) -> str:
    """The wait of which most could be avoided: B0 comes back to rank r at 2 S - 1 - r at best."""

    def avoidable(span) -> float:
        best = 2 * RANKS - 1 - span.rank if span.action.kind == "B" else span.rank
        return span.end - max(span.begin, best)

    longest = max((span for span in table.spans if span.action.message), key=avoidable)
    needs = Action(longest.action.kind, longest.action.batch)
    return (
        f"Look at rank {longest.rank}, which waits from {longest.begin:g} to {longest.end:g} for "
        f"{needs}: what do the other ranks do before it that could come later?"
    )


def _show(made: Schedule, wrong: ScheduleError | None) -> None:
    """Draw the schedule, if this is a notebook."""
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython
    from IPython.display import display

    if get_ipython() is not None:
        from tutorial_dl.course.plotting import schedule_so_far

        display(schedule_so_far(made, wrong))
