"""Notebook 11: folded solutions pass, as in simulated runs, and its kernel starts no MPI."""

import json
import subprocess
import sys

import numpy as np
import pytest
from exercise_cells import of_exercises
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


# The plan ----------------------------------------------------------------------------------------


def test_the_plan_by_hand():
    """100 MB at 1.25 GB/s take 80 ms each way; 16 x 160 ms fit into 10 gradients and one more."""
    assert check("11.plan", (1 + 250 / 160, 10)) is True
    assert 9 * 250 + 160 < 16 * 160 <= 10 * 250 + 160


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
