"""Notebook 23: folded solutions pass, and what its text predicts holds."""

import numpy as np
import pytest
from exercise_cells import of_exercises, says
from scipy.stats import norm

test_solutions, test_open_cells = of_exercises("23", "23.draws", "23.improvement", np=np)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (113, "round up"),
        (45, "can't be added"),  # 0.9 / 0.02
        (6, "this many miss"),  # ln 0.9 / ln 0.98
        (1, "misses with a chance of 98%"),  # ln 0.1 / ln 0.02
        (200, "too many$"),
        (50, "too few$"),
    ],
)
def test_hints_on_the_number_of_draws(capsys, answer, hint):
    import re

    assert re.search(hint, says(capsys, "23.draws", answer).rstrip())


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda m, s, b: (m - b) * norm.cdf((m - b) / s) + s * norm.pdf((b - m) / s), "maximum"),
        (lambda m, s, b: (b - m) * norm.cdf((b - m) / s), "density is missing"),
        (lambda m, s, b: norm.cdf((b - m) / s), "the chance of an improvement"),
        (lambda m, s, b: b - m, "no improvement, not as a negative one"),
    ],
)
def test_hints_on_the_expected_improvement(capsys, answer, hint):
    assert hint in says(capsys, "23.improvement", answer)


def test_the_expected_improvement_is_a_mean_over_draws():
    from tutorial_dl.course.exercises import check

    draws = np.random.default_rng(0).standard_normal(4_000_000)

    def mean(m, s, b):
        return np.maximum(0, b - (m + s * draws)).mean()

    m, s, b = 0.5, 0.3, 0.4
    z = (b - m) / s
    assert mean(m, s, b) == pytest.approx((b - m) * norm.cdf(z) + s * norm.pdf(z), rel=5e-3)
    assert check(
        "23.improvement",
        lambda m, s, b: (b - m) * norm.cdf((b - m) / s) + s * norm.pdf((b - m) / s),
    )
