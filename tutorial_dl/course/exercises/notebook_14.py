"""Checks for the exercises of notebook 14, gradient energy matching (GEM)."""

import numpy as np

from tutorial_dl.course.foundations.rules import matched_pace

from . import NotYet, close, must_be, must_be_function, must_have, must_return

MOMENTUM, WORKERS = 0.9, 8  # exercise 2


def commit(answer) -> str:
    """Exercise 1: (pi D, new m) of one step, element by element."""
    cases = {  # g, m, theta, s; eta, mu, kappa
        "no weight has moved": ([1.0, 1.0], [0.0, 0.1], [1.0, 1.0], [1.0, 1.0], 0.1, 0.9, 1.0),
        "nothing is left": ([1.0, -1.0], [0.0, 0.0], [0.8, 1.3], [1.0, 1.0], 0.1, 0.9, 1.0),
        "one of two weights": ([2.0, 2.0], [-0.5, -0.5], [0.9, 0.0], [1.0, 1.0], 0.1, 0.9, 1.0),
        "above the limit": ([0.1, 0.1], [-0.9, 0.9], [1.0, 1.0], [1.0, 1.0], 0.1, 0.9, 2.0),
        "a gradient of 0": ([0.0, 1.0], [-0.3, -0.3], [1.0, 0.9], [1.0, 1.0], 0.1, 0.9, 1.0),
        # The weight of a pixel that is 0 in all images: nothing is left, and 0 / 0 is nan.
        "a weight whose gradient is always 0": (
            [0.0, 0.0, 1.0], [0.0, 0.0, -0.3], [1.0, 0.5, 0.9], [1.0, 1.0, 1.0], 0.1, 0.9, 1.0,
        ),
        "kappa = 2": ([1.0, -1.0], [-0.1, 0.1], [0.8, 1.2], [1.0, 1.0], 0.1, 0.9, 2.0),
    }  # fmt: skip
    for what, (*vectors, eta, mu, kappa) in cases.items():
        g, m, theta, s = (np.array(vector) for vector in vectors)
        kept = [vector.copy() for vector in (g, m, theta, s)]
        must_be_function(answer)
        found = answer(*kept, eta, mu, kappa)
        must_return(found)
        found = must_have(found, 2, "two arrays: the commit pi D, and the new m")
        if not np.shape(found[0]):
            raise NotYet("expected two arrays: the commit pi D, and the new m")
        D = -eta * g
        new = mu * m + D
        pi = (kappa * np.abs(new) - np.abs(theta - s)) / (np.abs(D) + 1e-12)
        cut, mean = np.clip(pi, 0, 5), np.clip(pi.mean(), 0, 5)
        negative, large, right = np.minimum(pi, 5) * D, np.maximum(pi, 0) * D, cut * D
        old = (kappa * np.abs(m) - np.abs(theta - s)) / (np.abs(D) + 1e-12)
        if np.isnan(np.asarray(found[0], float)).any():
            raise NotYet(
                f"{what}: the commit contains nan: where the gradient is 0, what is 0 / 0?"
            )
        mistakes = {
            "pi must be at least 0: a worker does not undo the others' commits": negative,
            "pi must be at most 5": large,
            "you return pi; the commit is pi D": cut,
            "you use one pi for all weights; each weight needs its own": mean * D,
            "your commit goes uphill: D is minus eta times the gradient": -right,
            "use the new m, which contains this step's D": np.clip(old, 0, 5) * D,
            "what is left is divided by |D|; is eta in your D?": eta * right,
            "you return D itself; only what is left of it is committed": D,
        }
        wrong = {
            "this is the old m": m,
            "m has momentum: mu times the old m, plus D": D,
            "m contains D = -eta g, not the gradient": mu * m + g,
            "D contains the learning rate: D = -eta g": mu * m - g,
            "in m, only the old m is multiplied by mu": mu * (m + D),
        }
        close(found[1], new, f"{what}: the new m", wrong)
        close(found[0], right, f"{what}: the commit", mistakes)
        if not all(np.array_equal(*pair) for pair in zip(kept, (g, m, theta, s), strict=True)):
            raise NotYet(f"{what}: right, but your function changed its input arrays")
    return "each weight gets what is left of kappa |m|, at most five times |D|"


def kappa(answer) -> str:
    """Exercise 2: the kappa that keeps the pace, and the fastest pace of one worker."""
    asked, fastest = must_have(answer, 2, "two numbers: kappa, and the fastest pace")
    right, most = 1 / matched_pace(WORKERS, 1.0, MOMENTUM), matched_pace(1, 1e9, MOMENTUM)
    many = {
        "kappa times p / (p + 1) is the pace; solve for kappa": 1 / right,
        "kappa = 1 is close, but exactly pace 1 is asked for": 1.0,
        "a worker sees its own last commit, too": WORKERS / (WORKERS - 1),
        "the pace is of all workers together, not of each": WORKERS * right,
        "this is the kappa for one worker": 2.0,
    }
    must_be(asked, right, "kappa for 8 workers", many, 1e-3, units=False)
    one = {
        "however large kappa is, pi is clipped": 1.0,
        "this is in units of |D|; momentum makes the step of one process longer": 5.0,
        "momentum makes the step of one process 1 / (1 - mu) times |D|": 5 * MOMENTUM,
        "five is the limit for one worker: where does 8 come from?": 5 * WORKERS * (1 - MOMENTUM),
    }
    must_be(fastest, most, "the fastest pace of one worker", one, 1e-3, units=False)
    return "9/8 for eight workers, and at most half the pace for one worker"
