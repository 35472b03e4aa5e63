"""Curve fitting and gradient descent in numpy, and formulas for what later methods will do.

    bases.py            x -> design matrix: Polynomial, Chebyshev, Fourier, Bumps
    closed_form.py      least squares by QR, and by the normal equations to see why they are worse
    curve.py            fit a Curve to samples, and evaluate it at any x
    loss.py             LeastSquares: the mean squared error as a function of the parameters
    descent.py          full-batch, mini-batch and stochastic gradient descent
    theory.py           predictions for descent: stability, speed, noise floor
    curvature.py        the largest curvature of any loss, which limits the learning rate
    staleness.py        descent with stale gradients: stability, and implicit momentum
    elastic.py          elastic averaging (EASGD): equilibrium, stability, variance of the center
    energy.py           speed of gradient energy matching (GEM) with any number of workers
    queueing.py         how many workers one master can serve
    generalisation.py   the expected training and held-out errors of a fit

Everything is in float64 and depends on numpy alone.
"""

from tutorial_dl.course.foundations.bases import Bumps, Chebyshev, Fourier, Polynomial
from tutorial_dl.course.foundations.closed_form import solve_normal_equations, solve_qr
from tutorial_dl.course.foundations.curvature import largest_curvature
from tutorial_dl.course.foundations.curve import Curve, fit
from tutorial_dl.course.foundations.descent import Descent, descend
from tutorial_dl.course.foundations.elastic import center_deviation, elastic_growth, resting_places
from tutorial_dl.course.foundations.energy import matched_pace
from tutorial_dl.course.foundations.generalisation import expected_errors
from tutorial_dl.course.foundations.loss import LeastSquares, mean_squared_error
from tutorial_dl.course.foundations.queueing import (
    first_come_first_served,
    random_throughput,
    regular_throughput,
    saturation,
)
from tutorial_dl.course.foundations.staleness import (
    delay_bound,
    delayed_descent,
    delayed_growth,
    implicit_momentum,
    largest_rate,
    random_order_path,
)
from tutorial_dl.course.foundations.theory import (
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
    "center_deviation",
    "contraction",
    "delay_bound",
    "delayed_descent",
    "delayed_growth",
    "descend",
    "elastic_growth",
    "expected_errors",
    "first_come_first_served",
    "fit",
    "implicit_momentum",
    "largest_curvature",
    "largest_rate",
    "matched_pace",
    "mean_squared_error",
    "noise_floor",
    "predicted_path",
    "random_order_path",
    "random_throughput",
    "regular_throughput",
    "resting_places",
    "saturation",
    "solve_normal_equations",
    "solve_qr",
    "stability_bound",
]
