"""Checks for the exercises of notebook 14, gradient energy matching (GEM)."""

import numpy as np

from tutorial_dl.course.foundations.rules import matched_pace

from . import NotYet, close, must_be_function, must_have, must_not_be, must_return

MOMENTUM, WORKERS = 0.9, 8  # exercise 2


def commit(answer) -> str:
    """Exercise 1: (pi D, new m) of one step, element by element."""
    cases = {  # g, m, theta, s; eta, mu, kappa
        "no weight has moved": ([1.0, 1.0], [0.0, 0.1], [1.0, 1.0], [1.0, 1.0], 0.1, 0.9, 1.0),
        "nothing is left": ([1.0, -1.0], [0.0, 0.0], [0.8, 1.3], [1.0, 1.0], 0.1, 0.9, 1.0),
        "one of two weights": ([2.0, 2.0], [-0.5, -0.5], [0.9, 0.0], [1.0, 1.0], 0.1, 0.9, 1.0),
        "above the limit": ([0.1, 0.1], [-0.9, 0.9], [1.0, 1.0], [1.0, 1.0], 0.1, 0.9, 2.0),
        "zero gradient": ([0.0, 1.0], [-0.3, -0.3], [1.0, 0.9], [1.0, 1.0], 0.1, 0.9, 1.0),
        "kappa = 2": ([1.0, -1.0], [-0.1, 0.1], [0.8, 1.2], [1.0, 1.0], 0.1, 0.9, 2.0),
    }
    for what, (*vectors, eta, mu, kappa) in cases.items():
        g, m, theta, s = (np.array(vector) for vector in vectors)
        kept = [vector.copy() for vector in (g, m, theta, s)]
        must_be_function(answer)
        found = answer(*kept, eta, mu, kappa)
        must_return(found)
        must_have(found, 2, "two arrays: the commit pi D, and the new m")
        D = -eta * g
        new = mu * m + D
        pi = (kappa * np.abs(new) - np.abs(theta - s)) / (np.abs(D) + 1e-12)
        cut, mean = np.clip(pi, 0, 5), np.clip(pi.mean(), 0, 5)
        negative, large, right = np.minimum(pi, 5) * D, np.maximum(pi, 0) * D, cut * D
        mistakes = {
            "pi must be at least 0: a worker does not undo the others' commits": negative,
            "pi must be at most 5": large,
            "you return pi; the commit is pi D": cut,
            "you use one pi for all weights; each weight needs its own": mean * D,
        }
        must_not_be(found[0], right, mistakes, what, atol=1e-11)
        close(found[1], new, f"{what}: the new m", 1e-9, 1e-12)
        close(found[0], right, f"{what}: the commit", 1e-9, 1e-12)
        if not all(np.array_equal(*pair) for pair in zip(kept, (g, m, theta, s), strict=True)):
            raise NotYet(f"{what}: right, but your function changed its input arrays")
    return "each weight gets what is left of kappa |m|, at most five times |D|"


def kappa(answer) -> str:
    """Exercise 2: the kappa that keeps the pace, and the fastest pace of one worker."""
    must_have(answer, 2, "two numbers: kappa, and the fastest pace")
    asked, fastest = answer
    close(asked, 1 / matched_pace(WORKERS, 1.0, MOMENTUM), "kappa for 8 workers", 1e-3)
    close(fastest, matched_pace(1, 1e9, MOMENTUM), "the fastest pace of one worker", 1e-3)
    return "9/8 for eight workers, and at most half the pace for one worker"
