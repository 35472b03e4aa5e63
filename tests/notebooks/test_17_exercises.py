"""Notebook 17: any schedule that meets the conditions is right; others are told what is wrong."""

import itertools

import pytest
from exercise_cells import says

from tutorial_dl.course.exercises import check, notebook_17
from tutorial_dl.model_parallel import held, schedules, simulate
from tutorial_dl.model_parallel.schedules import Action

BEST = [
    "F0 F1 B0 W0 B1 F2 W1 F3 B2 W2 B3 W3",
    "F0 F1 B0 W0 B1 W1 F2 F3 B2 W2 B3 W3",
    "F0 B0 F1 B1 W0 W1 F2 B2 F3 B3 W2 W3",
]
OTHER = [BEST[0].replace("B1 F2 W1 F3", "B1 W1 F2 F3"), *BEST[1:]]  # F2 is one unit later
SLOW = ["F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3"] * 2 + ["F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3"]


def made(lists):
    return notebook_17._read(lists)[0]


@pytest.mark.parametrize(
    "answer",
    [
        BEST,
        tuple(one.split() for one in BEST),
        [[Action.parse(word) for word in one.split()] for one in BEST],
        [one.replace(" ", ", ") for one in BEST],
        "\n".join(BEST),
        "".join(f"rank {rank}:  {one}\n" for rank, one in enumerate(BEST)),
        str(made(BEST)),  # as it is printed, with its messages
        [list(actions) for actions in made(BEST).ranks],
        made(BEST),
    ],
)
def test_a_right_schedule_in_any_form(answer, capsys):
    assert check("17.schedule", answer), capsys.readouterr().out
    assert "17 units of time" in capsys.readouterr().out


def search(ranks, batches, most):
    """The fewest units of time of any schedule: all states that can be reached, unit by unit.

    A rank's state is how many F, B and W it has done; micro-batches are alike, so in order.
    """
    start, goal = ((0, 0, 0),) * ranks, ((batches,) * 3,) * ranks
    seen, level, units = {start}, {start}, 0
    while goal not in seen:
        units, found = units + 1, set()
        for state in level:
            ways = []
            for rank, (f, b, w) in enumerate(state):
                way = [(f, b, w)]
                if f < batches and f - w < most and (rank == 0 or state[rank - 1][0] > f):
                    way.append((f + 1, b, w))
                if b < f and (rank == ranks - 1 or state[rank + 1][1] > b):
                    way.append((f, b + 1, w))
                if w < b:
                    way.append((f, b, w + 1))
                ways.append(way)
            found.update(itertools.product(*ways))
        level = found - seen
        seen |= level
    return units


def test_what_is_asked_can_be_done_but_by_no_schedule_of_the_library():
    assert search(3, 4, 2) == notebook_17.BEST <= notebook_17.UNITS
    assert simulate(schedules.one_f_one_b(3, 4)).seconds == notebook_17.UNITS
    assert simulate(schedules.zb_h1(3, 4)).seconds == 14  # as the text says; with three held,
    assert search(3, 3, 3) == simulate(schedules.zb_h1(3, 3)).seconds  # nothing is faster
    for name in ("gpipe", "1f1b", "zb_h1"):
        assert max(held(schedules.named(name, 3, 4))) > notebook_17.HELD


def changed(rank, old, new):
    lists = list(BEST)
    assert old in lists[rank]
    lists[rank] = lists[rank].replace(old, new)
    return lists


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (SLOW, "takes 19 units of time; at most 18 are asked for. Look at rank 1, which waits from "
               "6 to 8 for F2"),
        (changed(1, "B1 W1", "W1 B1"), "rank 1 goes wrong at its action 5, W1: W needs"),
        (changed(0, "F0 F1 B0", "F0 B1 B0"), "rank 0 goes wrong at its action 2, B1: B needs"),
        (changed(2, "W3", "W2"), "action 12, W2: it was already done, as action 11"),
        (changed(2, "F0 B0 ", "F0 F0 B0 "), "action 2, F0: it was already done, as action 1"),
        (changed(1, " B3 W3", " B3"), "rank 1 never does W3"),
        (changed(0, "F0 F1 B0", "F0 B0 F1")[:1] + ["F1 F0 B0 W0 B1 W1 F2 F3 B2 W2 B3 W3", BEST[2]],
         "deadlock: rank 0 waits before B0 for B0 of rank 1, and rank 1 waits before F1 for F1 of "
         "rank 0"),
        (changed(0, "W3", "W4"), "rank 0, W4: there are 4 micro-batches, 0 to 3"),
        (changed(0, "F0", "F0.1"), "rank 0, F0.1: each rank has one stage"),
        (changed(0, "W3", "X3"), "rank 0: 'X3' is no action"),
        (schedules.zb_h1(3, 4), "rank 0 holds 3 micro-batches after F2; at most 2"),
        (schedules.one_f_one_b(3, 4), "rank 0 holds 3 micro-batches after F2"),
        (schedules.gpipe(4, 4), "3 ranks are asked for, yours is for 4"),
        (str(made(BEST)).replace("send F0 ", "", 1), "rank 0 never does send F0"),
        (str(made(BEST)).replace("recv F0 F0", "F0 recv F0", 1), "rank 1, action 0 (F0): its inp"),
        (BEST[:2], "expected 3 lists of actions"),
        (["F0 B0 W0", "", ""], "rank 1 has no actions yet"),
        ([[], [], []], "rank 0 has no actions yet"),
        ([1, 2, 3], "rank 0: a text such as 'F0 B0 W0' is needed, got 1"),
        ([[1, 2], [3], [4]], "rank 0: a text such as 'F0 B0 W0' is needed, got [1, 2]"),
        (3, "expected 3 lists of actions"),
        (..., "in place of the `...`"),
    ],
)  # fmt: skip
def test_the_first_wrong_action_is_named(answer, hint, capsys):
    assert hint in says(capsys, "17.schedule", answer)


def test_the_right_numbers_are_those_of_simulated_schedules():
    def idle(name, m):
        return simulate(schedules.named(name, 8, m)).bubble

    assert idle("gpipe", 63) <= 0.1 < idle("gpipe", 62)
    assert idle("zb_h1", 21) <= 0.1 < idle("zb_h1", 20)


def test_a_schedule_is_drawn_in_a_notebook(monkeypatch):
    import IPython

    drawn = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: "a shell")
    monkeypatch.setattr("IPython.display.display", drawn.append)
    for answer in (BEST, SLOW, changed(1, "B1 W1", "W1 B1")):
        check("17.schedule", answer)
    titles = [figure.axes[0].get_title(loc="left") for figure in drawn]
    assert titles == [
        "17 units of time, bubble 29 %", "19 units of time, bubble 37 %",
        "as far as it runs: rank 1 goes wrong",
    ]  # fmt: skip


def test_as_fast_as_1f1b_is_enough(capsys):
    assert check("17.schedule", OTHER)
    said = capsys.readouterr().out
    assert "18 units" in said and "no schedule is faster" not in said
