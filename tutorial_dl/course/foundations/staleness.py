"""Descent with stale gradients on a parabola: its stability, and its implicit momentum.

With curvature h, momentum mu and a gradient that is tau updates old, the error follows

    x[t+1] = x[t] + mu (x[t] - x[t-1]) - eta h x[t-tau]

so x[t] = z^t is a solution if z^(tau+2) - (1 + mu) z^(tau+1) + mu z^tau + eta h z = 0. Each update
finally multiplies the error by the largest |z|. Without momentum this factor reaches 1 at

    eta h = 2 sin(pi / (2 (2 tau + 1)))

where z = exp(i phi), phi = pi / (2 tau + 1). If each update is made by a worker drawn at random
from g workers, staleness is geometric, P(tau) = (1 - 1/g)^tau / g, and on average the workers do
exactly what one process does with momentum 1 - 1/g and learning rate eta / g (Mitliagkas et al.,
arXiv 1605.09774, theorem 3).
"""

from __future__ import annotations

import numpy as np


def delay_bound(tau: int, curvature: float = 1.0) -> float:
    """Return 2 sin(pi / (2 (2 tau + 1))) / h: a fixed delay is stable only for rates below this.

    Args:
        tau: staleness in updates, at least 0; p - 1 for p workers that take turns
        curvature: h of the direction with the largest curvature, above 0

    Raises:
        ValueError: an argument is outside its range

    Example:
        >>> [round(delay_bound(tau), 4) for tau in range(5)]
        [2.0, 1.0, 0.618, 0.445, 0.3473]
    """
    _check(tau)
    if not curvature > 0:
        raise ValueError(f"curvature must be above 0, got {curvature}")
    return float(2 * np.sin(np.pi / (2 * (2 * tau + 1))) / curvature)


def delayed_descent(
    rate: float,
    tau: int,
    start: float,
    steps: int,
    curvature: float = 1.0,
    momentum: float = 0.0,
) -> np.ndarray:
    """Run the recurrence above from x[0] = start; before that, x is `start` too.

    Args:
        rate: eta, the learning rate
        tau: staleness in updates, at least 0
        start: x[0]
        steps: number of updates
        curvature: h
        momentum: mu

    Returns:
        x, shape (steps + 1,).

    Raises:
        ValueError: tau is below 0

    Example:
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
    """Return the factor by which each update finally multiplies the error; above 1 it diverges.

    It is the largest |z| among the roots of the polynomial above.

    Args:
        rate: eta, the learning rate
        tau: staleness in updates, at least 0
        curvature: h
        momentum: mu

    Raises:
        ValueError: tau is below 0

    Example:
        >>> round(delayed_growth(0.1, 1), 4), round(delayed_growth(1.1, 1), 4)
        (0.8873, 1.0488)
    """
    _check(tau)
    polynomial = np.zeros(tau + 3)
    polynomial[:3] = 1, -(1 + momentum), momentum
    polynomial[-2] += rate * curvature
    return float(np.abs(np.roots(polynomial)).max())


def largest_rate(tau: int, curvature: float = 1.0, momentum: float = 0.0) -> float:
    """Return the largest stable learning rate for a delay of `tau` with momentum, to 1e-6 of it.

    Without momentum this is `delay_bound`; without delay it is 2 (1 + mu) / h. With both there is
    no such formula, so bisection finds where `delayed_growth` reaches 1.

    Args:
        tau: staleness in updates, at least 0
        curvature: h, above 0
        momentum: mu

    Raises:
        ValueError: tau is below 0

    Example:
        >>> round(largest_rate(0, momentum=0.9), 3), round(largest_rate(4), 3)
        (3.8, 0.347)
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
    """Return 1 - 1/g, the implicit momentum of g workers in random order.

    Args:
        workers: g, at least 1

    Raises:
        ValueError: workers is below 1

    Example:
        >>> [implicit_momentum(g) for g in (1, 2, 4)]
        [0.0, 0.5, 0.75]
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    return 1 - 1 / workers


def random_order_path(
    rate: float, workers: int, start: float, steps: int, curvature: float = 1.0
) -> np.ndarray:
    """Return the mean of x over all orders in which g workers may make the updates.

    It follows momentum 1 - 1/g and rate eta / g, but not from rest: all workers begin with the same
    weights, so the first update is a full one, as if the velocity had been -eta h x[0].

    Derivation: an update uses the gradient at the weights of a worker drawn at random. Its mean is
    h m[t], where m is the mean of the workers' weights, so x[t+1] = x[t] - eta h m[t]. That worker
    then has x[t+1], so m[t+1] = (1 - 1/g) m[t] + x[t+1] / g. Eliminating m gives the recurrence
    above, without delay.

    Args:
        rate: eta, the learning rate
        workers: g, at least 1
        start: x[0]
        steps: number of updates
        curvature: h

    Returns:
        x, shape (steps + 1,).

    Raises:
        ValueError: workers is below 1
    """
    momentum = implicit_momentum(workers)
    x, velocity = np.full(steps + 1, float(start)), -rate * curvature * start
    for t in range(steps):
        velocity = momentum * velocity - rate / workers * curvature * x[t]
        x[t + 1] = x[t] + velocity
    return x


def _check(tau: int) -> None:
    if tau < 0:
        raise ValueError(f"tau must be at least 0 updates, got {tau}")
