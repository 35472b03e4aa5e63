"""Checks for the exercises of notebook 25, cross-validation."""

import numpy as np

from . import NotYet, call, must_be

ACCURACY, DEVIATION = 0.9, 0.01  # exercise 1


def samples(answer) -> str:
    """Exercise 1: the n with sqrt(a (1 - a) / n) = DEVIATION."""
    a = ACCURACY
    right = a * (1 - a) / DEVIATION**2
    mistakes = {
        "the deviation is a square root: it falls with sqrt(n)": a * (1 - a) / DEVIATION,
        "a (1 - a) has both chances, to be right and to be wrong": a / DEVIATION**2,
        "each answer is right with a chance of 0.9, not of a half": 0.25 / DEVIATION**2,
        "this is the deviation of one answer over that of the mean: square it": np.sqrt(right),
    }
    must_be(answer, right, "the number of samples", mistakes, rtol=2e-3, units=False)
    return "and half the deviation takes four times as many"


def held_out(answer) -> str:
    """Exercise 2: k index arrays that cut n samples into folds."""
    for n, k in ((10, 3), (12, 4), (7, 7), (300, 5)):
        given = f"n = {n}, k = {k}"
        folds = [np.asarray(fold).reshape(-1) for fold in call(answer, n, k)]
        if len(folds) != k:
            raise NotYet(f"for {given} there must be {k} folds, got {len(folds)}")
        if any(fold.dtype.kind not in "iu" for fold in folds):
            raise NotYet(f"for {given}: a fold is an array of indices, which are whole numbers")
        every = np.concatenate(folds)
        if every.min(initial=0) < 0 or every.max(initial=0) >= n:
            raise NotYet(f"for {given}: indices go from 0 to {n - 1}")
        times = np.bincount(every, minlength=n)
        if (times > 1).any():
            raise NotYet(f"for {given}: sample {int(times.argmax())} is in more than one fold")
        if (times < 1).any():
            raise NotYet(f"for {given}: sample {int(times.argmin())} is in no fold")
        sizes = [len(fold) for fold in folds]
        if max(sizes) - min(sizes) > 1:
            raise NotYet(f"for {given}: sizes of {sizes} differ by more than one")
    return "so each sample is held out once, and trains k - 1 times"
