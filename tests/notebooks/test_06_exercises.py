"""Notebook 06: the solutions pass on every rank, wrong answers are explained, nothing hangs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from notebook_cells import Notebook

NOTEBOOK = Notebook("06")
SECONDS = 60


def run_here(code: str) -> None:
    """Run `code` as a learner's cell would; every rank calls this."""
    from tutorial_dl.course.exercises import check
    from tutorial_dl.training.prediction import step_seconds

    names = {"np": np, "check": check, "step_seconds": step_seconds}
    exec(compile(code, "cell", "exec"), names)


# How many ranks are worth it -------------------------------------------------------------------


def test_the_solution_of_the_ranks(capsys):
    run_here(NOTEBOOK.solution_of("06.ranks"))
    said = capsys.readouterr().out
    # By hand: 0.4 + 5.12/4 + 0.2/4 + 0.4 x 4 ms, 0.4 + 5.32 ms, 0.4 + 5.32/8 + 0.4 x 8 ms.
    assert said.startswith("correct: a step on 4 ranks takes 3.33 ms, on one 5.72, on 8 4.2")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((8, 1.5), "ranks = 8 takes 28.1% longer"),  # 4.265 / 3.33
        ((3, 1.696), "ranks = 3 takes 1.3% longer"),  # 3.3733 / 3.33
        ((1, 1.0), "ranks = 1 takes 71.8% longer"),  # 5.72 / 3.33
        ((4, 4), "too high by 2.28"),
        ((4, 1.6), "too low by 0.118"),
        ((4, None), "put your answer"),
        ((9, 1), "from 1 to 8, got 9"),
        ((4.0, 1.718), "a whole number"),
        ((True, 1), "a whole number"),
        (4, "expected two numbers"),
        ((4, 1.718, 0), "expected two numbers"),
    ],
)
def test_wrong_ranks(capsys, answer, says):
    from tutorial_dl.course.exercises import check

    assert check("06.ranks", answer) is False
    said = capsys.readouterr().out
    assert said.startswith("not yet: ") and says in said and said.count("\n") == 1


@pytest.mark.parametrize("answer", [(4, 1.718), (np.int64(4), np.float64(1.71)), [4, 1.72]])
def test_right_to_one_per_cent(answer):
    from tutorial_dl.course.exercises import check

    assert check("06.ranks", answer) is True


# One message instead of two --------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_solution_of_the_average(on_ranks, ranks):
    printed = on_ranks(ranks, run_here, NOTEBOOK.solution_of("06.average"), timeout=SECONDS)
    assert printed.count("correct: ") == ranks and "not yet" not in printed
    samples = ranks * (ranks - 1) // 2 + 1  # 0, 1, 2, ... and one more on the last rank
    for rank in range(ranks):
        assert f"correct: rank {rank}, with " in printed
    assert f"with {ranks} of {samples} samples" in printed


@pytest.mark.parametrize("exercise", ["06.average", "06.ranks"])
def test_a_cell_that_is_not_done_is_no_error(on_ranks, exercise):
    printed = on_ranks(2, run_here, NOTEBOOK.open_cell(exercise), timeout=SECONDS)
    assert printed.count("not yet: ") == 2 and "correct" not in printed


RIGHT = """
def average(team, g, s):
    message = np.append(s * g, s)
    team.allreduce(message)
    return message[:-1] / message[-1]
check("06.average", average)
"""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("return team.allreduce(g.copy()) / team.size", r"mean of means; .*? \[0, 1, 3\] samples"),
        (
            "t = team.allreduce(np.array([1.0 * s])); return team.allreduce(s * g) / t",
            "right, but took 2 allreduces",
        ),
        ("return team.allreduce(s * g)", "off by up to"),
        ("m = team.allreduce(np.append(s * g, s)); g -= 1; return m[:-1] / m[-1]", "has changed"),
        ("team.allreduce(np.append(s * g, s))", "returns nothing"),
        ("return g[:2]", r"should have shape \(3,\)"),
    ],
)
def test_wrong_averages(on_ranks, wrong, says):
    code = f"def average(team, g, s):\n    {wrong}\ncheck('06.average', average)"
    printed = on_ranks(3, run_here, code, timeout=SECONDS)
    assert printed.count("not yet: ") == 3 and "correct: " not in printed
    assert len(re.findall(says, printed)) == 3


def test_no_function(on_ranks):
    printed = on_ranks(2, run_here, "check('06.average', 3)", timeout=SECONDS)
    assert printed.count("not yet: a function is asked for, not 3") == 2


def test_an_error_on_one_rank_hangs_no_other(on_ranks):
    code = RIGHT.replace("message = ", "1 / (team.rank - 1); message = ")
    printed = on_ranks(3, run_here, code, timeout=SECONDS)
    assert printed.count("not yet: ") == 3
    assert printed.count("not yet: ZeroDivisionError") == 1
    assert printed.count("PeerError: rank 1 failed: ZeroDivisionError") == 2


def test_a_rank_that_stays_away_hangs_no_other(on_ranks):
    """The usual mistake: a rank without samples does nothing, so it calls no allreduce either."""
    code = RIGHT.replace("    message", "    if not s: return g\n    message", 1)
    printed = on_ranks(3, run_here, code, timeout=SECONDS)
    assert printed.count("not yet: ") == 3 and "it left the team" in printed
