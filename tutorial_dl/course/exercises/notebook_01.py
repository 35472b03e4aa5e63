"""Checks of notebook 01, curve fitting."""

import numpy as np

from . import NotYet, call, close, whole


def degree(answer) -> str:
    """The degree with the smallest expected held-out error for 100 samples instead of 20."""
    from tutorial_dl.course.foundations import Polynomial, expected_errors
    from tutorial_dl.data import curve

    def truth(x):
        return np.sin(np.pi * x)

    noise = 0.2
    x = curve(n=100, noise=noise, seed=2, function=truth).train.inputs
    elsewhere = curve(n=1000, noise=noise, seed=1, function=truth).train.inputs
    errors = [expected_errors(Polynomial(d), x, elsewhere, truth, noise) for d in range(13)]
    training, held_out = np.transpose(errors)
    best = int(held_out.argmin())

    chosen = whole(answer, 0, 12, "the degree")
    if chosen == best:
        return f"held-out error {held_out[best]:.4f}, close to the noise variance {noise**2:.4f}"
    if chosen == training.argmin():
        raise NotYet("there the training error is smallest; look at the held-out error")
    if chosen == best + 1:
        raise NotYet(f"{chosen} may be the number of parameters; the degree is asked for")
    excess = held_out[chosen] / held_out[best] - 1
    raise NotYet(
        f"the held-out error of degree {chosen} would be {excess:.1%} above that of the best degree"
    )


def ridge(answer) -> str:
    """The w that minimises |A w - y|^2 / s + strength |w|^2."""
    random = np.random.default_rng(1)
    for s, k, strength in ((20, 4, 0.1), (30, 12, 1e-3), (8, 8, 2.0)):
        A, y = random.standard_normal((s, k)), random.standard_normal(s)

        def minimiser(rho, A=A, y=y):
            # The penalty acts like k more samples: |A w - y|^2 + |sqrt(s rho) w - 0|^2.
            s, k = A.shape
            longer = np.vstack([A, np.sqrt(s * rho) * np.eye(k)])  # (s + k, k)
            return np.linalg.lstsq(longer, np.append(y, np.zeros(k)))[0]

        w = call(answer, A, y, strength)
        what = f"w for s={s}, k={k}, strength={strength}"
        mistakes = {
            "this is the fit without a penalty": 0.0,
            "the loss is a mean over s samples, the penalty is not: where did s go?": strength / s,
            "your penalty is counted twice as much: both terms are squares": 2 * strength,
            "your penalty counts half: its derivative has a factor of 2, too": strength / 2,
        }
        mistakes = {hint: minimiser(rho) for hint, rho in mistakes.items()}
        close(w, minimiser(strength), what, mistakes, atol=1e-8)
    return "the gradient of the loss with its penalty vanishes there"
