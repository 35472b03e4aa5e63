"""Checks of notebook 01, curve fitting."""

import numpy as np

from . import NotYet, call, close


def degree(answer) -> str:
    """The degree with the smallest expected held-out error for 100 samples instead of 20."""
    from tutorial_dl.course.foundations import Polynomial, expected_errors
    from tutorial_dl.data import curve

    def truth(x):
        return np.sin(np.pi * x)

    noise = 0.2
    x = curve(n=100, noise=noise, seed=2, function=truth).train.inputs
    elsewhere = curve(n=1000, noise=noise, seed=1, function=truth).train.inputs
    held_out = [expected_errors(Polynomial(d), x, elsewhere, truth, noise)[1] for d in range(13)]
    best = int(np.argmin(held_out))

    if isinstance(answer, bool) or answer not in range(13):
        raise NotYet(f"the degree must be a whole number from 0 to 12, got {answer!r}")
    if answer != best:
        excess = held_out[int(answer)] / held_out[best] - 1
        raise NotYet(
            f"the held-out error of degree {answer} would be {excess:.1%} above that of the best"
        )
    return f"held-out error {held_out[best]:.4f}, close to the noise variance {noise**2:.4f}"


def ridge(answer) -> str:
    """The w that minimises |A w - y|^2 / s + strength |w|^2."""
    random = np.random.default_rng(1)
    for s, k, strength in ((20, 4, 0.1), (30, 12, 1e-3), (8, 8, 2.0)):
        A, y = random.standard_normal((s, k)), random.standard_normal(s)
        # The penalty acts like k more samples: |A w - y|^2 + |sqrt(s strength) w - 0|^2.
        longer = np.vstack([A, np.sqrt(s * strength) * np.eye(k)])  # (s + k, k)
        right = np.linalg.lstsq(longer, np.append(y, np.zeros(k)))[0]
        w = call(answer, A, y, strength)
        close(w, right, f"w for s={s}, k={k}, strength={strength}", rtol=1e-8, atol=1e-10)
    return "the gradient of the loss with its penalty vanishes there"
