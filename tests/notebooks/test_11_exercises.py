"""Notebook 11: folded solutions pass, wrong answers get a hint, and its kernel starts no MPI."""

import json
import subprocess
import sys

import numpy as np
import pytest
from exercise_cells import of_exercises, says
from notebook_cells import Notebook

from tutorial_dl.course import foundations
from tutorial_dl.course.exercises import check, notebook_11

test_solutions, test_open_cells = of_exercises(
    "11", "11.answer", "11.plan", foundations=foundations
)


# The answer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4, 5, 9])
def test_seconds_to_an_answer_are_those_of_the_queue(workers):
    """Simulate every exchange; count the second half, when the workers have found an order."""
    for compute, serve in ((0.030, 0.010), (0.004, 0.010), (0.0, 0.010)):
        times = np.full((workers, 200), compute), np.full(600, serve)
        _, asked, _, done = foundations.first_come_first_served(*times)[-5 * workers :].T
        assert np.allclose(done - asked, notebook_11._answer(workers, compute, serve))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda W, c, s: s, "with W = 5, c = 30, s = 10 ms, 0.01, is too low by 0.01"),
        (lambda W, c, s: W * s - c, "with W = 1, c = 30, s = 10 ms, -0.02, is too low"),
        (lambda W, c, s: W * s, "with W = 3, c = 30, s = 10 ms, 0.03, is too high"),
        (lambda W, c, s: max(0, W * s - c), "is too low"),
        (lambda W, c, s: None, "is None so far"),
        (lambda W, c: c, "TypeError"),
        (0.01, "a function is asked for"),
    ],
)
def test_wrong_seconds(capsys, wrong, message):
    assert message in says(capsys, "11.answer", wrong)


# The plan ----------------------------------------------------------------------------------------


def test_the_plan_by_hand():
    """100 MB at 1.25 GB/s take 80 ms each way; 16 x 160 ms fit into 10 gradients and one more."""
    assert check("11.plan", (1 + 250 / 160, 10)) is True
    assert 9 * 250 + 160 < 16 * 160 <= 10 * 250 + 160


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((1 + 250 / 80, 10), "the largest speed-up, 4.125, is too high"),  # counts one way only
        ((16, 10), "is too high"),
        ((2.56, 9), "16 workers need 1.06 seconds of the master's time in each second"),
        ((2.56, 1), "need 6.24 seconds"),
        ((2.56, 11), "11 gradients per exchange are more than needed"),
        ((2.56, 9.6), "gradients per exchange must be a whole number above 0, got 9.6"),
        ((2.56, 0), "got 0"),
        ((2.56, "many"), "ValueError"),
        (2.56, "two numbers"),
        ((2.56, ...), "put your answer"),
    ],
)
def test_wrong_plans(capsys, answer, message):
    assert message in says(capsys, "11.plan", answer)


# The kernel --------------------------------------------------------------------------------------

WITHOUT_A_CLUSTER = """
import json, sys
for cell in json.loads(sys.stdin.read()):
    exec(cell)
assert "mpi4py.MPI" not in sys.modules
"""


def test_the_notebooks_own_process_starts_no_mpi():
    """Run its cells up to the start of the cluster; MPI runs on the engines only."""
    code = Notebook("11").cells("code")
    first = next(number for number, cell in enumerate(code) if "cluster.start" in cell)
    assert first >= 3
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_CLUSTER], input=json.dumps(code[:first]),
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
