"""Checks of notebook 01, curve fitting."""

import numpy as np

from . import NotYet, whole


def degree(answer) -> str:
    """The degree with the smallest expected held-out error for 100 samples instead of 20."""
    from tutorial_dl.data import curve

    noise = 0.2
    places = ((100, 2), (1000, 1))  # where it is fitted, and where it is tested
    x, elsewhere = (curve(n, noise=noise, seed=seed).train.inputs for n, seed in places)
    training, held_out = np.array([[*_expected(d, x, elsewhere, noise)] for d in range(13)]).T
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


def _expected(degree: int, x: np.ndarray, elsewhere: np.ndarray, noise: float):
    """Mean squared errors at x and elsewhere of a fit to sin(pi x), averaged over the noise.

    The fit's values elsewhere are M y with M = B A^+. (Hastie, Tibshirani and Friedman, The
    Elements of Statistical Learning, section 7.3.)
    """
    A, B = (np.polynomial.polynomial.polyvander(places, degree) for places in (x, elsewhere))
    for maps, places, sign in (
        (A @ np.linalg.pinv(A), x, -1),
        (B @ np.linalg.pinv(A), elsewhere, 1),
    ):
        missed = np.sin(np.pi * places) - maps @ np.sin(np.pi * x)
        yield np.mean(missed**2) + noise**2 * (1 + sign * np.sum(maps**2) / len(places))
