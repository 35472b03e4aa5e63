"""An error in a learner's function is told with the learner's own line, and nothing of ours."""

import linecache
import re

import numpy as np
import pytest
from exercise_cells import says

from tutorial_dl.course.exercises.own_line import FAILED, RIGHT, WAITED, WRONG, Verdict
from tutorial_dl.course.exercises.ranks_agree import summary


def defined(code: str, name: str = "cell-of-a-learner"):
    """The function that a cell of this code defines; its lines are known, as IPython's are."""
    linecache.cache[name] = len(code), None, code.splitlines(keepends=True), name
    names = {"np": np}
    exec(compile(code, name, "exec"), names)
    return list(names.values())[-1]


DESCENT = """
def descent(A, y, w, eta, steps):
    k = A.shape[1]
    {}
    return w
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("w = mp.linalg.solve(A.T @ A, A.T @ y)",
         "NameError: name 'mp' is not defined (line 4: `w = mp.linalg.solve("
         "A.T @ A, A.T @ y)`)"),
        ("w = np.linalg.solv(A.T @ A, A.T @ y)",
         "AttributeError: module 'numpy.linalg' has no attribute 'solv' "
         "(line 4: `w = np.linalg.solv(A.T @ A, A.T @ y)`)"),
        # The error is raised inside numpy.
        ("w = np.linalg.solve(0 * A.T @ A, A.T @ y)",
         "LinAlgError: Singular matrix (line 4: `w = np.linalg.solve(0 * A.T @ A, A.T @ y)`)"),
        ("w = [1 / eta for eta in range(k)]",
         "ZeroDivisionError: division by zero (line 4: `w = [1 / eta for eta in range(k)]`)"),
        ("raise KeyError(5)", "KeyError: 5 (line 4: `raise KeyError(5)`)"),
        ("raise ValueError", "ValueError (line 4: `raise ValueError`)"),
        ("raise ValueError('two\\nlines')",
         r"ValueError: two lines (line 4: `raise ValueError('two\nlines')`)"),
        ("raise NotImplementedError", "the function is still to be written"),
    ],
)  # fmt: skip
def test_an_error_has_the_learners_line(line, said, capsys):
    told = says(capsys, "02.descent", defined(DESCENT.format(line)))
    # From 3.12 on, Python also guesses what was meant.
    assert re.sub(r"\. Did you mean: '\w+'\?", "", told) == f"not yet: {said}\n"


def test_the_innermost_line_of_the_learners_is_told(capsys):
    helper = defined("def helper(w):\n    return w.nothing\n", "another-cell")
    code = "def descent(A, y, w, eta, steps):\n    return help_me(y)\n"
    descent = defined(code)
    descent.__globals__["help_me"] = helper
    assert "(line 2: `return w.nothing`)" in says(capsys, "02.descent", descent)


def test_a_wrong_number_of_arguments_has_no_line_of_ours(capsys):
    said = says(capsys, "02.descent", defined("def descent(A, y):\n    return 0\n"))
    wanted = "descent() takes 2 positional arguments but 5 were given"
    assert said == f"not yet: TypeError: {wanted}\n"


def test_an_error_on_a_thread_of_the_rehearsal(capsys):
    code = "def ring(comm, x):\n    chunks = np.array_split(x, comm.sise)\n"
    said = says(capsys, "07.ring", defined(code))
    assert said == (
        "not yet: 4 ranks, 8 numbers: rank 0: AttributeError: comm has no 'sise' here; it has "
        "rank, size and Sendrecv (line 2: `chunks = np.array_split(x, comm.sise)`)\n"
    )


def test_no_hint_names_a_class_of_ours(capsys):
    code = "def ring(comm, x):\n    comm.Send(x, 1)\n"
    assert "Rehearsal" not in says(capsys, "07.ring", defined(code))


# Ranks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([(RIGHT, "fine")] * 3, "correct: fine"),
        ([(WRONG, "a mean of means")] * 3, "not yet: a mean of means"),
        ([(FAILED, "NameError: x")] * 3, "not yet: NameError: x"),
        ([(RIGHT, "fine"), (WRONG, "no sum"), (RIGHT, "fine")],
         "not yet: rank 1: no sum; ranks 0, 2 have it right"),
        ([(WRONG, "a"), (WRONG, "b"), (WRONG, "b")],
         "not yet: ranks 1, 2: b; no rank has it right"),
        ([(WRONG, "rank 0: a"), (WRONG, "rank 1: a"), (WRONG, "rank 2: a")],
         "not yet: rank 0: a; no rank has it right"),
        # The others only wait for the rank that failed, or have a wrong sum without its part.
        ([(WAITED, "rank 1 failed"), (FAILED, "KeyError: 5"), (WRONG, "no sum")],
         "not yet: rank 1: KeyError: 5"),
        ([(WAITED, "rank 1 failed"), (WRONG, "no sum"), (WAITED, "rank 1 failed")],
         "not yet: rank 1: no sum"),
        ([(WAITED, f"rank {rank} waited 2 s") for rank in range(3)],
         "not yet: the ranks wait for one another; rank 0 waited 2 s"),
        ([(WAITED, "rank 0 waited 2 s"), None, (WAITED, "rank 2 waited 2 s")],
         "not yet: rank 1 did not come to the end of the check"),
        ([(RIGHT, "fine"), None, None], "not yet: ranks 1, 2 did not come to the end of the check"),
    ],
)  # fmt: skip
def test_ranks_agree_on_one_line(verdicts, said):
    found = {rank: Verdict(*verdict) for rank, verdict in enumerate(verdicts) if verdict}
    assert str(summary(found, len(verdicts))) == said
