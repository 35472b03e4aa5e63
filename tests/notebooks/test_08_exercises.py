"""Notebook 08: the solutions pass on every rank, wrong answers are explained, nothing hangs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from notebook_cells import Notebook

NOTEBOOK = Notebook("08")
SECONDS = 60


def run_here(code: str) -> None:
    """Run `code` as a learner's cell would; every rank calls this."""
    from numba_kernels.errors import PeerError
    from tutorial_dl.course.exercises import check

    names = {"np": np, "check": check, "PeerError": PeerError}
    exec(compile(code, "cell", "exec"), names)


def said(on_ranks, ranks: int, code: str) -> str:
    """The output of `code` on `ranks` ranks, one line per rank."""
    printed = on_ranks(ranks, run_here, code, timeout=SECONDS)
    assert printed.count("not yet: ") + printed.count("correct: ") == ranks
    return printed


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("exercise", ["08.sums", "08.persistently"])
def test_the_folded_solution_is_correct(on_ranks, exercise, ranks):
    printed = said(on_ranks, ranks, NOTEBOOK.solution_of(exercise))
    assert printed.count("correct: ") == ranks
    assert all(f"correct: rank {rank}" in printed for rank in range(ranks))


@pytest.mark.parametrize("exercise", ["08.sums", "08.persistently"])
def test_the_open_cell_is_not_yet(capsys, exercise):
    run_here(NOTEBOOK.open_cell(exercise))
    assert capsys.readouterr().out == "not yet: the function is still to be written\n"


# The notebook's function, with the bug that the exercise is about.
NAIVE = """
def sums(team, batches):
    return [team.allreduce(batch.copy()) for batch in batches]
check("08.sums", sums)
"""


def test_the_function_with_the_bug_fails_on_every_rank_and_hangs_on_none(on_ranks):
    printed = said(on_ranks, 3, NAIVE)
    assert printed.count("not yet: ") == 3
    assert "rank 2, with 2 batches, returns 2 sums; the ranks have [3, 3, 2] batches" in printed


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ('op="max"', 'op="min"', r"rank 0, with 3 batches, returns 2 sums"),
        ('op="max")[0]', 'op="max")[0] + 1', r"returns 4 sums; the ranks have \[3, 3, 2\]"),
        ("np.zeros_like(batches[0])", "batches[-1].copy()", r"the sum of round 2 .* is off by"),
        ("added.append(team.allreduce(brought))", "added.append(brought)", r"of round 0 .* is off"),
        ("return added", "return None", r"rank \d: the function returns nothing"),
    ],
)
def test_wrong_sums(on_ranks, right, wrong, says):
    solution = NOTEBOOK.solution_of("08.sums")
    assert right in solution
    printed = said(on_ranks, 3, solution.replace(right, wrong))
    assert printed.count("not yet: ") == 3 and re.search(says, printed)


def test_an_answer_for_three_ranks_is_not_enough(on_ranks):
    """The answer works only if just the last rank has one batch fewer."""
    code = """
def sums(team, batches):
    batches = list(batches)
    if team.rank == team.size - 1:
        batches.append(np.zeros_like(batches[0]))
    return [team.allreduce(batch.copy()) for batch in batches]
check("08.sums", sums)
"""
    printed = said(on_ranks, 3, code)
    assert printed.count("not yet: ") == 3 and "the ranks have [1, 4, 4]" in printed


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        (
            "team.recover()",
            "pass",
            r"rank 0 returned after try 1, which had failed on rank 1: no rank",
        ),
        ("except Exception", "except OSError", r"after try 1 of 4 it raised PeerError: rank 1 fai"),
        ("except Exception", "except PeerError", r"after try 1 of 4 it raised OSError"),
        (
            "            team.barrier()",
            "            pass",
            r"rank 0 returned after try 2, which had fa",
        ),
        ("if not left:", "if True:", r"after try 1 of 4 it raised"),
        ("range(tries)", "range(tries + 1)", r"2, but failing work was tried 3 times"),
        ("                raise", "                return 0", r"failed, and no error was raised"),
        ("return result", "return", r"the function returns nothing"),
        (
            "            if not left:\n                raise\n",
            "            import sys\n"
            "            first = sys.exception() if left == tries - 1 else first\n"
            "            if not left:\n                raise first\n",
            r"rank 0: expected the error of the last try, got OSError: try 1: can't read",
        ),
    ],
)
def test_wrong_persistence(on_ranks, right, wrong, says):
    solution = NOTEBOOK.solution_of("08.persistently")
    assert right in solution
    printed = said(on_ranks, 3, solution.replace(right, wrong, 1))
    assert printed.count("correct: ") == 0 and re.search(says, printed)


@pytest.mark.parametrize("exercise", ["08.sums", "08.persistently"])
def test_no_function(capsys, exercise):
    run_here(f"check({exercise!r}, 3)")
    assert capsys.readouterr().out == "not yet: a function is asked for, not 3\n"


# The notebook's faults -------------------------------------------------------------------------


def test_a_cell_that_may_fail_is_followed_by_one_that_checks_how():
    """The tag alone would let any error pass, or none."""
    code = [cell for cell in NOTEBOOK.all if cell["cell_type"] == "code"]
    faults = [
        k for k, cell in enumerate(code) if "raises-exception" in cell["metadata"].get("tags", [])
    ]
    assert len(faults) >= 5
    for k in faults:
        following = "".join(code[k + 1]["source"])
        assert following.startswith("error = sys.last_value\n") and "\nassert " in following
