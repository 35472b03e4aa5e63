"""Descent with old gradients on a parabola: where it is stable, and whose momentum it looks like.

With curvature h and a gradient that is tau updates old, and momentum mu, the error follows

    x[t+1] = x[t] + mu (x[t] - x[t-1]) - eta h x[t-tau]

so x[t] = z^t wherever z^(tau+2) - (1 + mu) z^(tau+1) + mu z^tau + eta h z = 0, and the largest |z|
is what the error is multiplied by in the end. Without momentum it passes 1 at

    eta h = 2 sin(pi / (2 (2 tau + 1)))

where z = exp(i phi), phi = pi / (2 tau + 1). Workers whose turn is drawn at random have geometric
staleness, P(tau) = (1 - 1/g)^tau / g for g of them, and on average they do exactly what one process
does with momentum 1 - 1/g and the rate eta / g (Mitliagkas et al., arXiv 1605.09774, theorem 3).
"""

from __future__ import annotations

import numpy as np


def delay_bound(tau: int, curvature: float = 1.0) -> float:
    """2 sin(pi / (2 (2 tau + 1))) / h: a fixed delay is stable only for rates below this.

    Parameters
    ----------
    tau : how many updates old gradients are; of p workers in turn, p - 1.
    curvature : h, of the steepest direction.

    Raises
    ------
    ValueError : tau below 0, or a curvature that is not above 0.

    >>> [round(delay_bound(tau), 4) for tau in range(5)]
    [2.0, 1.0, 0.618, 0.445, 0.3473]
    """
    _check(tau)
    if not curvature > 0:
        raise ValueError(f"a curvature of {curvature}; above 0 is right")
    return float(2 * np.sin(np.pi / (2 * (2 * tau + 1))) / curvature)


def delayed_descent(
    rate: float,
    tau: int,
    start: float,
    steps: int,
    curvature: float = 1.0,
    momentum: float = 0.0,
) -> np.ndarray:
    """x[0] = start, x[1], ..., shape (steps + 1,), of the recurrence above; x is `start` before.

    >>> delayed_descent(0.1, 1, 1.0, 5).round(3).tolist()
    [1.0, 0.9, 0.8, 0.71, 0.63, 0.559]
    """
    _check(tau)
    x, velocity = np.full(steps + 1, float(start)), 0.0
    for t in range(steps):
        velocity = momentum * velocity - rate * curvature * x[max(t - tau, 0)]
        x[t + 1] = x[t] + velocity
    return x


def delayed_growth(rate: float, tau: int, curvature: float = 1.0, momentum: float = 0.0) -> float:
    """The factor by which each update multiplies the error in the end; above 1 it diverges.

    The largest |z| of the polynomial above, whose roots are the eigenvalues of its companion
    matrix.
    """
    _check(tau)
    polynomial = np.zeros(tau + 3)
    polynomial[:3] = 1, -(1 + momentum), momentum
    polynomial[-2] += rate * curvature
    return float(np.abs(np.roots(polynomial)).max())


def largest_rate(tau: int, curvature: float = 1.0, momentum: float = 0.0) -> float:
    """The rate up to which a delay of `tau` with momentum is stable, to 1e-6 of it.

    Without momentum that is `delay_bound`; without delay 2 (1 + mu) / h. With both there is no such
    formula, so it is looked for: halving the interval in which `delayed_growth` passes 1.
    """
    low, high = 0.0, 4 / curvature
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if delayed_growth(middle, tau, curvature, momentum) < 1:
            low = middle
        else:
            high = middle
    return low


def implicit_momentum(workers: int) -> float:
    """1 - 1/g: the momentum that g workers in random order act like, on average.

    >>> [implicit_momentum(g) for g in (1, 2, 4)]
    [0.0, 0.5, 0.75]
    """
    if workers < 1:
        raise ValueError(f"{workers} workers; 1 or more are needed")
    return 1 - 1 / workers


def random_order_path(
    rate: float, workers: int, start: float, steps: int, curvature: float = 1.0
) -> np.ndarray:
    """The mean of x over all orders in which workers may come, each update by any of them.

    Shape (steps + 1,). Momentum 1 - 1/g and rate eta / g; but not from rest: all workers begin with
    the same weights, so the first update is a whole one, as if the velocity had been -eta h x[0].

    Why exactly so: the gradient of an update is that at the weights of a worker drawn at random, on
    average h m[t] with m their mean, x[t+1] = x[t] - eta h m[t]. That worker then has x[t+1], so
    m[t+1] = (1 - 1/g) m[t] + x[t+1] / g. Without m: the recurrence above, without delay.
    """
    momentum = implicit_momentum(workers)
    x, velocity = np.full(steps + 1, float(start)), -rate * curvature * start
    for t in range(steps):
        velocity = momentum * velocity - rate / workers * curvature * x[t]
        x[t + 1] = x[t] + velocity
    return x


def _check(tau: int) -> None:
    if tau < 0:
        raise ValueError(f"a staleness of {tau} updates; 0 or more is right")
