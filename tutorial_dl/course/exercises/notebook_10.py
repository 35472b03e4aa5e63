"""Checks of notebook 10, batch normalisation."""

import numpy as np

from . import NotYet, call, close, must_have


def combine(answer) -> str:
    """Check (mean, variance) of the whole, from the ranks' counts, means and variances."""
    random = np.random.default_rng(10)
    # name, samples per rank, dtype, mean, largest error (both in standard deviations)
    cases = [
        ("equal shares", (4, 4), np.float64, 0.0, 1e-12),
        ("shares of 7, 0, 1 and 12", (7, 0, 1, 12), np.float64, 0.5, 1e-12),
        ("float32, where the mean is 4096 standard deviations", (8, 5, 3), np.float32, 2**12, 2e-3),
        ("float64, where it is 2^27", (8, 5, 3), np.float64, 2**27, 1e-6),
    ]
    for what, counts, dtype, mean, error in cases:
        x = mean + random.normal(size=(sum(counts), 3))
        parts = np.split(x, np.cumsum(counts)[:-1])
        means = np.array([part.mean(axis=0) if len(part) else np.zeros(3) for part in parts])
        spreads = np.array([part.var(axis=0) if len(part) else np.zeros(3) for part in parts])
        found = call(answer, np.array(counts), means.astype(dtype), spreads.astype(dtype))
        found = must_have(found, 2, "two arrays: the mean and the variance")
        if np.shape(found[0]) == np.shape(found[1]) == (3,) and counts == (4, 4):
            swapped = (x.var(axis=0), x.mean(axis=0))
            if np.allclose(found, swapped):
                raise NotYet("the two are swapped: the mean comes first")
        plain = "ranks count by their numbers of samples; this is a plain mean over the ranks"
        mistakes = {plain: means.mean(axis=0)}
        close(found[0], x.mean(axis=0), f"{what}: the mean", mistakes, rtol=1e-7, atol=error)
        within = (np.array(counts)[:, None] * spreads).sum(axis=0) / sum(counts)
        between = x.var(axis=0) - within
        mistakes = {
            "this is the mean of the variances; the means differ between ranks, too": within,
            "this is the variance of the means; ranks have variances of their own": between,
            "this is with s - 1 in place of s": x.var(axis=0, ddof=1),
            "this is the sum over the samples; divide by their number": sum(counts) * x.var(axis=0),
            "this is a standard deviation": x.std(axis=0),
        }
        close(found[1], x.var(axis=0), f"{what}: the variance", mistakes, rtol=error)
    return "right to the last digits, also where the mean is 2^27 standard deviations"
