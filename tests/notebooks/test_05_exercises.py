"""Notebook 05: the solution of the crossover is where both formulas agree."""

from __future__ import annotations

import numpy as np
import pytest
from notebook_cells import Notebook

NOTEBOOK = Notebook("05")


def run_here(code: str) -> None:
    """Run `code` as a learner's cell would; every rank calls this."""
    from tutorial_dl.course.exercises import check

    exec(compile(code, "cell", "exec"), {"np": np, "check": check})


def test_the_solution_of_the_crossover_is_where_both_formulas_agree(capsys):
    names = {"check": lambda *answer: None}
    exec(NOTEBOOK.solution_of("05.crossover"), names)
    n, alpha, beta, p = names["ring_wins"], 2e-6, 1 / 10e9, 16
    tree = 2 * 4 * alpha + 2 * 4 * n * beta  # 16 = 2^4
    ring = 2 * (p - 1) * alpha + 2 * n * (p - 1) / p * beta
    assert tree == pytest.approx(ring, rel=1e-9)
    run_here(NOTEBOOK.solution_of("05.crossover"))
    assert capsys.readouterr().out.startswith("correct: ")
