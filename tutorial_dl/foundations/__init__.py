"""Curve fitting and gradient descent in numpy: what every later method is measured against.

    bases.py            x -> design matrix: Polynomial, Chebyshev, Fourier, Bumps
    closed_form.py      least squares by QR, and by the normal equations to see why not
    curve.py            fit a Curve, and ask it for any x
    loss.py             LeastSquares: the mean squared error as a function of the parameters
    descent.py          descend: full-batch, mini-batch, stochastic; says what ended it
    theory.py           what descent will do, before it is run: stability, speed, noise floor
    generalisation.py   the error on data kept out, before it is measured

Everything is in float64 and depends on numpy alone.
"""

from tutorial_dl.foundations.bases import Bumps, Chebyshev, Fourier, Polynomial
from tutorial_dl.foundations.closed_form import solve_normal_equations, solve_qr
from tutorial_dl.foundations.curve import Curve, fit
from tutorial_dl.foundations.descent import Descent, descend
from tutorial_dl.foundations.generalisation import expected_errors
from tutorial_dl.foundations.loss import LeastSquares, mean_squared_error
from tutorial_dl.foundations.theory import (
    best_rate,
    contraction,
    noise_floor,
    predicted_path,
    stability_bound,
)

__all__ = [
    "Bumps",
    "Chebyshev",
    "Curve",
    "Descent",
    "Fourier",
    "LeastSquares",
    "Polynomial",
    "best_rate",
    "contraction",
    "descend",
    "expected_errors",
    "fit",
    "mean_squared_error",
    "noise_floor",
    "predicted_path",
    "solve_normal_equations",
    "solve_qr",
    "stability_bound",
]
