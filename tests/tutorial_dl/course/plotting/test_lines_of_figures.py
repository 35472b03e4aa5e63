"""Figures show the numbers that they are given, as lines and markers."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import heights, line

from tutorial_dl.course import foundations
from tutorial_dl.course import plotting as p

TWO = {"one": [1.0, 2.0, 2.0], "two": [np.nan, 2.0, 4.0]}
GROUPS = {"groups": [4, 7, 19], "one": [3, 3, 3]}
PATHS = np.array([[1.0, 0.0, 4.0], [1.0, 2.0, 0.0]])
ROUNDS = {"downpour": {1: [1, 0.5], 4: [1, 9]}, "energy matching": {1: [1, 0.6], 4: [1, 0.4]}}
DUEL = foundations.duel((0.5, 0.0), 0.4, 5)

LINES = {  # figure: what it is called with, and the lines (panel, legend entry, x and y or y alone)
    "fit_errors": (
        ([1, 2], [3, 2], [4, 3], 0.5),
        [
            (0, "training", [[1, 2], [3, 2]]), (0, "held out", [4, 3]),
            (0, "noise variance", [0.25, 0.25]),
        ],
    ),
    "duels": (({"one": DUEL},), [(0, "one", DUEL.T)]),
    "quality_at_equal_terms": (
        ({"a": ([0.5, 1.0], [1.0, 0.3])}, 0.2), [(0, "a", [[1, 2], [1.0, 0.3]])],
    ),
    "served": (
        ([1, 2, 3], TWO, {"two": {2: 1.5}}),
        [
            (0, "one, predicted", [[1, 2, 3], [1, 2, 2]]),
            (0, "two, predicted", [[2, 3], [2, 4]]),  # only where a layout is possible
            (0, "two, measured", [[2], [1.5]]),
        ],
    ),
    "unseen": (
        ([1, 4, 16], GROUPS, {"groups": {4: 7.1}}),
        [(0, "groups, predicted", [[1, 4, 16], [4, 7, 19]]), (0, "groups, measured", [[4], [7.1]])],
    ),
    "random_order": (
        (PATHS, np.array([1, 0.5, 0.1]), np.array([1, 0.9, 0.8])),
        [
            (0, "mean of 2 orders", [1, 1, 2]), (0, "momentum, predicted", [1, 0.5, 0.1]),
            (0, "one process, no momentum", [1, 0.9, 0.8]),
        ],
    ),
    "periods": (
        ([1, 4], [8, 2], [8, 3], {"5 epochs": [0.1, 0.2]}),
        [(0, "predicted", [8, 2]), (0, "measured", [8, 3]), (1, "5 epochs", [0.1, 0.2])],
    ),
    "kept_pace": (
        (ROUNDS, np.array([1, 0.5]), ["too many", "any"]),
        [(0, "4 workers", [1, 9]), (1, "1 worker", [1, 0.6]), (1, "one process", [1, 0.5])],
    ),
}  # fmt: skip


def compared(*lines, **options):
    """The figure over x = 1 and 2."""
    return p.compared([1, 2], *lines, title="t", xlabel="x", ylabel="y", **options)


@pytest.mark.parametrize("name", LINES)
def test_lines_with_names(name):
    arguments, expected = LINES[name]
    figure = getattr(p, name)(*arguments)
    for panel, label, numbers in expected:
        found = line(figure.axes[panel], label)
        np.testing.assert_array_equal(found if np.ndim(numbers) == 2 else found[1], numbers)


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (lambda: p.regrets({"a": ([1, 2], [0.5, 0.0])}, "seconds"), [[0.5, 1e-9]]),
        (lambda: compared([0.1, 0.2], [0.11, 0.19]), [[0.1, 0.2], [0.11, 0.19]]),
        (lambda: compared([0.1, 0.2], {2: 0.19}, levels={"one": 3}), [[0.1, 0.2], [0.19], [3, 3]]),
        (lambda: compared({"a": [1, 2], "b": [3, 4]}), [[1, 2], [3, 4]]),
        (lambda: compared({"a": [1, 2], "b": [3, 4]}, {"b": [5, 6], "a": [7, 8]}),
         [[1, 2], [7, 8], [3, 4], [5, 6]]),
        # What has not been guessed yet is left out.
        (lambda: compared([1, 2], None, {2: 4.0, 1: ...}), [[1, 2], [4]]),
        (lambda: p.guessed(compared([1, 2]), {1: 5.0, 2: None}), [[1, 2], [5]]),
        (lambda: compared([1, 2], None, {1: ..., 2: None}), [[1, 2]]),
    ],
)  # fmt: skip
def test_lines_in_their_order(figure, expected):
    for found, numbers in zip(heights(figure().axes[0]), expected, strict=True):
        assert found == pytest.approx(numbers)
