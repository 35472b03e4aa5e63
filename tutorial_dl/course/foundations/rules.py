"""Asynchronous rules on a parabola, in closed form: staleness, elastic averaging, GEM.

Symbols: eta is the learning rate `rate`, h the curvature, mu the momentum, tau the staleness in
updates (p - 1 for p workers that take turns), p and g numbers of workers.

Staleness. With a gradient that is tau updates old, the error follows

    x[t+1] = x[t] + mu (x[t] - x[t-1]) - eta h x[t-tau]

so x[t] = z^t is a solution if z^(tau+2) - (1 + mu) z^(tau+1) + mu z^tau + eta h z = 0. Each update
finally multiplies the error by the largest |z|. Without momentum this factor reaches 1 at

    eta h = 2 sin(pi / (2 (2 tau + 1)))

where z = exp(i phi), phi = pi / (2 tau + 1). If each update is made by a worker drawn at random
from g workers, staleness is geometric, P(tau) = (1 - 1/g)^tau / g, and on average the workers do
exactly what one process does with momentum 1 - 1/g and learning rate eta / g (Mitliagkas et al.,
arXiv 1605.09774, theorem 3).

Elastic averaging (EASGD). Its synchronous form, with p workers, the center c, the moving rate beta
and alpha = beta / p, is

    x_i' = x_i - eta h (x_i - a_i) - alpha (x_i - c);   c' = c + alpha sum_i (x_i - c)

where a_i is the minimum of worker i's loss (Zhang, Choromanska, LeCun, arXiv 1412.6651, equations 2
and 3).

Gradient energy matching (GEM) on a slope, where the gradient g is constant. One process with
momentum mu finally moves by |m| = eta g / (1 - mu) per step. Let p workers take turns and commit C
each. Between two of its reads a worker then sees the weights move by |theta - s| = p C: the commits
of all others, and its own last one. So it commits C = kappa |m| - p C, and in a round all workers
together move by

    p C = kappa p / (p + 1) |m|

unless C is clipped at `most` times eta g. (The rule is that of Hermans and Louppe, arXiv
1805.08469; this consequence is our own, and tested against the rule.)
"""

import numpy as np


def delay_bound(tau: int, curvature: float = 1.0) -> float:
    """Return 2 sin(pi / (2 (2 tau + 1))) / h: a fixed delay is stable only for rates below this.

    The curvature is that of the direction where it is largest.

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
    velocity: float = 0.0,
) -> np.ndarray:
    """Run the recurrence with stale gradients from x[0] = start; before that, x is `start` too.

    Args:
        rate, curvature, momentum: eta, h and mu
        tau: staleness in updates, at least 0
        start: x[0]
        steps: number of updates
        velocity: x[0] - x[-1], in place of 0

    Returns:
        x, shape (steps + 1,).

    Example:
        >>> delayed_descent(0.1, 1, 1.0, 5).round(3).tolist()
        [1.0, 0.9, 0.8, 0.71, 0.63, 0.559]
    """
    _check(tau)
    x = np.full(steps + 1, float(start))
    for t in range(steps):
        velocity = momentum * velocity - rate * curvature * x[max(t - tau, 0)]
        x[t + 1] = x[t] + velocity
    return x


def delayed_growth(rate: float, tau: int, curvature: float = 1.0, momentum: float = 0.0) -> float:
    """Return the factor by which each update finally multiplies the error; above 1 it diverges.

    It is the largest |z| among the roots of the polynomial. Arguments as in `delayed_descent`.

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

    Example:
        >>> [implicit_momentum(g) for g in (1, 2, 4)]
        [0.0, 0.5, 0.75]
    """
    _check(workers=workers)
    return 1 - 1 / workers


def random_order_path(
    rate: float, workers: int, start: float, steps: int, curvature: float = 1.0
) -> np.ndarray:
    """Return the mean of x over all orders in which g workers may make the updates: (steps + 1,).

    It follows momentum 1 - 1/g and rate eta / g, but not from rest: all workers begin with the same
    weights, so the first update is a full one, as if the velocity had been -eta h x[0].

    Derivation: an update uses the gradient at the weights of a worker drawn at random. Its mean is
    h m[t], where m is the mean of the workers' weights, so x[t+1] = x[t] - eta h m[t]. That worker
    then has x[t+1], so m[t+1] = (1 - 1/g) m[t] + x[t+1] / g. Eliminating m gives the recurrence
    above, without delay.
    """
    momentum, velocity = implicit_momentum(workers), -rate * curvature * start
    return delayed_descent(rate / workers, 0, start, steps, curvature, momentum, velocity)


def _check(tau: int = 0, workers: int = 1) -> None:
    if tau < 0:
        raise ValueError(f"tau must be at least 0 updates, got {tau}")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")


def resting_places(
    rate: float, moving_rate: float, minima: np.ndarray, curvature: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the equilibrium of workers and center.

    There a worker's gradient step, eta h (x_i - a_i), and its elastic force, alpha (x_i - c),
    cancel. The center c is the mean of the minima a_i:

        x_i = c + eta h / (eta h + alpha) (a_i - c)

    For minima of shape (p, n) and the curvature of each coordinate, (n,), these are the workers'
    places, (p, n), and the center, (n,).
    """
    minima, pull = np.asarray(minima, float), rate * np.asarray(curvature, float)
    center, alpha = minima.mean(axis=0), moving_rate / len(minima)
    return center + pull / (pull + alpha) * (minima - center), center


def matched_pace(workers: int, kappa: float, momentum: float, most: float = 5.0) -> float:
    """Return how far all workers together move per round, in units of one process's step |m|.

    Args:
        workers: p, at least 1; they take turns, with one step each per round
        kappa: the energy factor; the speed that is asked for, relative to one process
        momentum: mu of the one process that GEM compares with
        most: largest value of pi, the factor on a worker's own step eta g

    Example:
        >>> round(matched_pace(3, 1.0, 0.9), 6), round(matched_pace(1, 4.0, 0.9), 6)
        (0.75, 0.5)
    """
    _check(workers=workers)
    return min(kappa * workers / (workers + 1), most * workers * (1 - momentum))
