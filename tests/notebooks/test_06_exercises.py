"""Notebook 06: the solution for the number of ranks is that by hand."""

from __future__ import annotations

import numpy as np
from notebook_cells import Notebook

NOTEBOOK = Notebook("06")


def run_here(code: str) -> None:
    """Run `code` as a learner's cell would; every rank calls this."""
    from tutorial_dl.course.exercises import check
    from tutorial_dl.simulate.steps import step_seconds

    names = {"np": np, "check": check, "step_seconds": step_seconds}
    exec(compile(code, "cell", "exec"), names)


def test_the_solution_of_the_ranks(capsys):
    run_here(NOTEBOOK.solution_of("06.ranks"))
    said = capsys.readouterr().out
    # By hand: 0.4 + 5.12/4 + 0.2/4 + 0.4 x 4 ms, 0.4 + 5.32 ms, 0.4 + 5.32/8 + 0.4 x 8 ms.
    assert said.startswith("correct: a step on 4 ranks takes 3.33 ms, on one 5.72, on 8 4.2")
    assert said.count("\n") == 1
