"""Checks of notebook 22, a GAN of particle showers."""

import numpy as np

from . import call, close, must_be

X0 = 4.03  # mm


def deeper(answer) -> str:
    """mm between the maxima of showers whose energies differ by a factor of 20."""
    right = X0 * np.log(20)
    mistakes = {
        "in units of what is the formula's depth?": np.log(20),
        "a step divides the energy by e, not by 10": X0 * np.log10(20),
        "a step divides the energy by e, not by 2": X0 * np.log2(20),
        "the depth grows with the logarithm of the energy": X0 * 20,
        "how much more is asked for, not how much": X0 * np.log(1000 / 0.00817),
    }
    must_be(answer, right, "the depth", mistakes)
    return "a calorimeter for 20 times the energy is 12 mm deeper, not 20 times as deep"


def separation_power(answer) -> str:
    """The separation power of two histograms of counts."""
    random = np.random.default_rng(22)
    for n, empty in ((6, 0), (40, 3)):
        counts, others = random.integers(1, 50, (2, n)).astype(float)
        counts[:empty] = others[:empty] = 0
        counts[empty : 2 * empty] = others[2 * empty : 3 * empty] = 0  # empty in one only
        p, q = counts / counts.sum(), others / others.sum()
        filled, both = p + q > 0, (p > 0) & (q > 0)
        right = 0.5 * np.sum((p - q)[filled] ** 2 / (p + q)[filled])
        raw = 0.5 * np.sum((counts - others)[filled] ** 2 / (counts + others)[filled])
        common = 0.5 * np.sum((p - q)[both] ** 2 / (p + q)[both])
        plain = 0.5 * np.sum(np.abs(p - q)[filled] / (p + q)[filled])
        mistakes = {
            "a histogram with more entries is not another shape: normalise both first": raw,
            "two histograms that do not overlap should have 1": 2 * right,
            "a bin that is empty in one of them adds to the difference": common,
            "what is divided by p + q is the square of the difference": plain,
        }
        close(call(answer, counts, others), right, "the separation power", mistakes)
    return "0 for equal shapes, 1 for histograms that do not overlap, and empty bins add nothing"
