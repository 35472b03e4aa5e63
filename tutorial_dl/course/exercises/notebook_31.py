"""Checks of notebook 31, seldom talking (local SGD, DiLoCo)."""

import numpy as np

from . import NotYet, call, close, must_be, whole

COMPUTE, EXCHANGE, SHARE = 0.1, 4 * 10e6 / (1e9 / 8), 0.1  # seconds; exercise 2


def common(answer) -> str:
    """Exercise 1: the mean of the workers' weights, by their numbers of samples."""
    random = np.random.default_rng(31)
    for samples in ([5, 5], [1, 3, 4], [2, 0, 6]):
        w, ends = random.normal(size=4), random.normal(size=(len(samples), 4))
        found = call(answer, w.copy(), ends.copy(), np.array(samples))
        right = np.average(ends, axis=0, weights=samples)
        mistakes = {
            "workers count by their samples, not equally": ends.mean(axis=0),
            "this is D, the way from the workers back to w; follow it with rate 1": w - right,
            "this goes against the way of the workers: w - D, not w + D": 2 * w - right,
            "the sum is not divided by the number of samples": w - (w - right) * sum(samples),
        }
        close(found, right, f"samples {', '.join(map(str, samples))}", mistakes)
    return "workers count as much as they have seen"


def period(answer) -> str:
    """Exercise 2: the smallest H whose exchanges take a tenth of the time."""
    found = whole(answer, 1, None, "the period")
    right = np.ceil((1 - SHARE) / SHARE * EXCHANGE / COMPUTE)
    if found == right - 1:
        raise NotYet("with this period they take slightly more than a tenth: round up")
    mistakes = {
        "a tenth of the time of training, exchanges included, not of computing": 32,
        "A byte has 8 bits: 1 Gbit/s are 125 MB/s": np.ceil(right / 8),
        "a weight has 4 bytes": np.ceil(right / 4),
    }
    must_be(found, right, "the period", mistakes, rtol=0, units=False)
    return "a little less than 10 x / c"
