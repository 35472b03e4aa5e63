"""Notebook 18: the solutions pass, and the numbers are those of the library's formulas."""

import numpy as np
from exercise_cells import of_exercises

from tutorial_dl.model_parallel import Positions
from tutorial_dl.model_parallel.zero import formulas

test_solutions, test_open_cells = of_exercises("18", "18.ranks", "18.add", np=np)


def test_the_right_numbers_of_ranks():
    def needs(ranks, stage):
        return sum(formulas(1_500_000_000, ranks, stage).values())

    assert needs(5, 2) <= 10e9 < needs(4, 2)
    assert needs(3, 3) <= 10e9 < needs(2, 3)
    assert needs(10**9, 1) > 10e9


def test_zigzag_is_as_much_faster_as_the_text_says():
    for ranks in (2, 4, 7):
        work = {}
        for order in ("in order", "zigzag"):
            positions = Positions(4 * ranks, ranks, order)
            size = 4 * ranks // len(positions.edges[1:])  # of a piece
            work[order] = [
                size**2 * sum(len(positions.pairs(r, other, True)) for other in range(ranks))
                for r in range(ranks)
            ]
        assert len(set(work["zigzag"])) == 1
        assert max(work["in order"]) / max(work["zigzag"]) == 4 * ranks / (2 * ranks + 1)
