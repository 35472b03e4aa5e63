"""Figures show the numbers that they are given, as lines and markers."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import heights, line

from tutorial_dl.course import foundations
from tutorial_dl.course import plotting as p

EXCHANGED = {1: 0.011}
TWO = {"one": [1.0, 2.0, 2.0], "two": [np.nan, 2.0, 4.0]}
SOLVERS = {"QR": [3.0, 2, 1]}, {"theory": [4.0, 3, 5]}
GROUPS = {"groups": [4, 7, 19], "one": [3, 3, 3]}
PATHS = np.array([[1.0, 0.0, 4.0], [1.0, 2.0, 0.0]])
ROUNDS = {"downpour": {1: [1, 0.5], 4: [1, 9]}, "energy matching": {1: [1, 0.6], 4: [1, 0.4]}}
DUEL = foundations.duel((0.5, 0.0), 0.4, 5)

LINES = {  # figure: what it is called with, and the lines (panel, legend entry, x and y or y alone)
    "gradient_noise": (
        ([32, 64], [0.4, 0.2], [0.5, 0.1]),
        [(0, "predicted", [[32, 64], [0.4, 0.2]]), (0, "measured", [[32, 64], [0.5, 0.1]])],
    ),
    "fit_errors": (
        ([1, 2], [3, 2], [4, 3], ([1, 1], [5, 5]), 0.5),
        [
            (0, "training, measured", [[1, 2], [3, 2]]), (0, "held out, measured", [4, 3]),
            (0, "held out, predicted", [5, 5]), (0, "noise variance", [0.25, 0.25]),
        ],
    ),
    "solver_errors": (([1, 2, 3], *SOLVERS), [(0, "QR", [3, 2, 1]), (0, "theory", [4, 3, 5])]),
    "duels": (({"one": DUEL},), [(0, "one", DUEL.T)]),
    "duel_factors": (
        ([0.1, 0.2], {"a": [1, 1.1]}, {"a": lambda rate: 1 + rate}),
        [(0, "a, measured", [[0.1, 0.2], [1, 1.1]])],
    ),
    "distances_by_epoch": (({"weights": [1.0, 0.5]},), [(0, "weights", [[1, 2], [1.0, 0.5]])]),
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
    "delayed_paths": (
        ({"below": np.arange(2.0), "above": -np.arange(2.0)}, {"above": [1, 0], "below": [1, 2]}),
        [(0, "below", [1, 2]), (0, "above", [1, 0])],
    ),
    "random_order": (
        (PATHS, np.array([1, 0.5, 0.1]), np.array([1, 0.9, 0.8])),
        [
            (0, "mean of 2 orders", [1, 1, 2]), (0, "momentum, predicted", [1, 0.5, 0.1]),
            (0, "one process, no momentum", [1, 0.9, 0.8]),
        ],
    ),
    "largest_rates": (
        ([0, 0.5], {0: [2.0, 3.0], 1: [1.0, 0.5]}),
        [(0, "delay 0", [[0, 0.5], [2, 3]]), (0, "delay 1", [1, 0.5])],
    ),
    "periods": (
        ([1, 4], [8, 2], [8, 3], {"5 epochs": [0.1, 0.2]}),
        [(0, "predicted", [8, 2]), (0, "measured", [8, 3]), (1, "5 epochs", [0.1, 0.2])],
    ),
    "pace_by_workers": (
        ([1, 4], {"κ = 1": [0.5, 0.8]}, {"κ = 1": [0.6, 0.7]}), [(0, "κ = 1", [0.6, 0.7])],
    ),
    "kept_pace": (
        (ROUNDS, np.array([1, 0.5]), ["too many", "any"]),
        [(0, "4 workers", [1, 9]), (1, "1 worker", [1, 0.6]), (1, "one process", [1, 0.5])],
    ),
    "mean_of_means": (
        ([4, 2, 1], [0.0, 0.5, 1.0], [0.1, 0.4, 1.1]),
        [(0, "predicted", [0, 0.5, 1]), (0, "measured, weighted equally", [0.1, 0.4, 1.1])],
    ),
}  # fmt: skip


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
        (lambda: p.chances([1, 2], np.array([0.1, 0.2]), [0.11, 0.19]),
         [[0.1, 0.2], [0.11, 0.19]]),
        (lambda: p.regrets({"a": ([1, 2], [0.5, 0.0])}, "seconds"), [[0.5, 1e-9]]),
        (lambda: p.measured_once(np.arange(3), np.arange(3) ** 2, "x", "y"), [[0, 1, 4]]),
        (lambda: p.score_memory([1, 2], [4096, 1024], [5120, 1536]), [[4, 1], [5, 1.5]]),
        (lambda: p.shower_depths([10, 100], [5, 7], [5.1, 6.9]), [[5, 7], [5.1, 6.9]]),
        (lambda: p.slowest_of([1, 2], [0.01, 0.02], EXCHANGED, 0.01), [[10, 20], [11], [10, 10]]),
        (lambda: p.bubbles([2, 4], {"GPipe": [0.3, 0.2], "ZB-H1": [0.1, 0.05]}),
         [[0.3, 0.2], [0.1, 0.05]]),
        (lambda: p.bubbles([2, 4], {"GPipe": [0.3, 0.2]}, {"GPipe": [0.35, 0.21]}),
         [[0.3, 0.2], [0.35, 0.21]]),
        (lambda: p.travelled([4, 16], {"a": [1024, 4096]}, {"a": [8000, 8192]}),
         [[1024, 4096], [8000, 8192]]),
    ],
)  # fmt: skip
def test_lines_in_their_order(figure, expected):
    for found, numbers in zip(heights(figure().axes[0]), expected, strict=True):
        assert found == pytest.approx(numbers)
