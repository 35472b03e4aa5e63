"""Curve fitting and gradient descent in numpy, and formulas for what later methods will do.

    bases.py            x -> design matrix: Polynomial
    least_squares.py    the mean squared error, its minimum, and the fitted curve
    descent.py          full-batch, mini-batch and stochastic gradient descent
    theory.py           the largest curvature of any loss
    rules.py            asynchronous rules: staleness, elastic averaging, energy matching
    queueing.py         how many workers one master can serve
    games.py            the smallest game of two players, and why it turns in circles

Everything is in float64 and depends on numpy alone.
"""

import lazy_loader

_find, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "bases": ["Polynomial"],
        "descent": ["Descent", "descend"],
        "games": ["duel", "duel_factor", "duel_matrix"],
        "least_squares": [
            "Curve", "LeastSquares", "fit", "solve_qr",
        ],
        "queueing": [
            "first_come_first_served", "random_throughput", "regular_throughput", "saturation",
        ],
        "rules": [
            "delay_bound", "delayed_descent", "delayed_growth", "implicit_momentum",
            "largest_rate", "matched_pace", "random_order_path", "resting_places",
        ],
        "theory": ["largest_curvature"],
    },
)  # fmt: skip


def __getattr__(name: str):
    if name in ("Cut", "Job", "Machine", "Transformer", "cost", "possible", "why_not"):
        raise ImportError(f"{name} is gone: write simulate.{name.replace('Machine', 'gpus')}")
    return _find(name)
