"""Ranks in words, and what waiting ranks wait for."""

import pytest

from tutorial_dl.cluster import rank_status
from tutorial_dl.cluster.protocol import Doing
from tutorial_dl.cluster.rank_status import status


@pytest.mark.parametrize(
    "numbers, text",
    [
        ([3], "rank 3"),
        ([2, 0], "ranks 0, 2"),
        ([0, 1], "ranks 0, 1"),
        (range(4), "ranks 0-3"),
        ([9, 1, 2, 3, 3, 5, 6], "ranks 1-3, 5, 6, 9"),
    ],
)
def test_ranks_are_folded(numbers, text):
    assert rank_status.ranks(numbers) == text


def doing(call: str = "f(x)", mpi: bool = False) -> Doing:
    return Doing("running", call, 3, mpi, 0.0, 0, 90.0)


def waiting(call="barrier", missing=None, team=(0, 1, 2, 3), number=7):
    wait = {"waits": call, "waited": 2.0, "number": number, "team": list(team), "missing": missing}
    return Doing("running", f"team.{call}()", 1, False, 0.0, 0, 0.0, **wait)


def test_ranks_that_wait_for_one():
    answers = {rank: waiting(missing=[3]) for rank in (2, 0, 1)} | {3: doing()}
    assert rank_status.missing(answers) == {0: [3], 1: [3], 2: [3]}
    assert rank_status.waits(answers) == ["ranks 0-2 wait in barrier for rank 3"]


def test_who_is_late_is_found_from_all_answers():
    """Over messages a rank does not know who is late, and one may not have answered."""
    answers = {0: waiting("allreduce"), 1: doing(), 3: waiting("allreduce")}
    assert rank_status.waits(answers) == ["ranks 0, 3 wait in allreduce for ranks 1, 2"]
    # Rank 2 came while the ranks were asked: it no longer counts as late.
    answers = {0: waiting(missing=[2, 3]), 1: waiting(missing=[2, 3]), 2: waiting(missing=[3])}
    assert rank_status.waits(answers) == ["ranks 0-2 wait in barrier for rank 3"]


def test_each_team_and_call_has_its_sentence():
    answers = {
        0: waiting("barrier", team=(0, 1)),
        1: waiting("barrier", number=8, team=(0, 1)),
        2: waiting("broadcast", missing=[3], team=(2, 3)),
        3: waiting("Star.ask", missing=[0]),
    }
    assert rank_status.waits(answers) == [
        "rank 0 waits in barrier for rank 1",
        "rank 1 waits in barrier for rank 0",
        "rank 2 waits in broadcast for rank 3",
        "rank 3 waits in Star.ask for rank 0",
    ]


def test_all_have_come():
    """For a moment all ranks of a call wait for none."""
    answers = {rank: waiting(missing=[]) for rank in range(4)}
    assert rank_status.waits(answers) == ["ranks 0-3 wait in barrier"]
    assert rank_status.waits({0: doing()}) == []


def test_the_status_of_a_cell():
    assert status({k: doing() for k in range(4)}, range(4)) == "ranks 0-3 compute"
    waits = {k: waiting(missing=[3]) for k in range(3)}
    expected = "ranks 0-2 wait in barrier for rank 3; rank 3 computes"
    assert status(waits | {3: doing()}, range(4)) == expected
    assert status(waits, range(4)) == expected  # rank 3 can't answer: it is in compiled code
    said = status(waits, range(4), stopped=[3])
    assert said == "ranks 0-2 wait in barrier for rank 3; rank 3 is stopped by a signal"
    receives = doing("comm.recv(source=1)", mpi=True)
    said = status({0: receives, 1: doing()}, [0, 1], [2, 3])
    assert said == (
        "rank 0 waits in comm.recv(source=1) (line 3); rank 1 computes; ranks 2, 3 are done"
    )
    assert status({}, [], [0]) == "rank 0 is done"
