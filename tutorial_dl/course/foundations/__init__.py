"""Curve fitting and gradient descent in numpy: what every later method is measured against.

    bases.py            x -> design matrix: Polynomial, Chebyshev, Fourier, Bumps
    closed_form.py      least squares by QR, and by the normal equations to see why not
    curve.py            fit a Curve, and ask it for any x
    loss.py             LeastSquares: the mean squared error as a function of the parameters
    descent.py          descend: full-batch, mini-batch, stochastic; says what ended it
    theory.py           what descent will do, before it is run: stability, speed, noise floor
    curvature.py        the steepest second derivative of any loss, and so the largest step
    staleness.py        descent with old gradients: stability, and the momentum nobody asked for
    elastic.py          workers on springs: where they rest, when they swing, what they average
    energy.py           how fast gradient energy matching goes, with any number of workers
    queueing.py         how many workers one master can serve
    generalisation.py   the error on data kept out, before it is measured

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
