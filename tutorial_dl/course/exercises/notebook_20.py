"""Checks of notebook 20, the forger's game."""

import numpy as np

from . import call, close, must_be

RATE = 0.4  # of the exercise


def penalty(answer) -> str:
    """The smallest penalty with which steps at once spiral in, at learning rate 0.4."""
    right = RATE / 4  # the determinant 1 - rate penalty + rate^2 / 4 is 1
    mistakes = {
        "this is the growth of the squared distance per step, rate^2 / 4; how much of it does a "
        "penalty take away in a step of that rate?": RATE**2 / 4,
        "f'(0) is 1/2, and it is in the determinant twice": RATE,
        "the determinant is the square of the factor": RATE / 2,
        "is the sign right? The penalty is subtracted": -RATE / 4,
        "this is the factor of a step without a penalty": float(np.sqrt(1 + RATE**2 / 4)),
    }
    must_be(answer, right, "the penalty", mistakes, units=False)
    return f"above {right:g} the determinant is below 1, so every turn ends nearer to the center"


def best_score(answer) -> str:
    """The score of the best discriminator, from the densities of data and generated samples."""
    random = np.random.default_rng(20)
    for n in (1, 5):
        p, q = random.uniform(0.1, 2, (2, n))
        right = np.log(p / q)
        mistakes = {
            "your score is high for generated samples: which density belongs on top?": -right,
            "this is the probability; the score is its logit, ln(P / (1 - P))": p / (p + q),
            "this is the ratio of the densities; the score is its logarithm": p / q,
        }
        close(call(answer, p, q), right, "the score", mistakes)
    return "sigmoid of it is p / (p + q), the share of the data among all samples at x"
