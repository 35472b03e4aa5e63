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

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "bases": ["Bumps", "Chebyshev", "Fourier", "Polynomial"],
        "closed_form": ["solve_normal_equations", "solve_qr"],
        "curvature": ["largest_curvature"],
        "curve": ["Curve", "fit"],
        "descent": ["Descent", "descend"],
        "elastic": ["center_deviation", "elastic_growth", "resting_places"],
        "energy": ["matched_pace"],
        "generalisation": ["expected_errors"],
        "loss": ["LeastSquares", "mean_squared_error"],
        "queueing": [
            "first_come_first_served", "random_throughput", "regular_throughput", "saturation",
        ],
        "staleness": [
            "delay_bound", "delayed_descent", "delayed_growth", "implicit_momentum",
            "largest_rate", "random_order_path",
        ],
        "theory": [
            "best_rate", "contraction", "noise_floor", "predicted_path", "stability_bound",
        ],
    },
)  # fmt: skip
