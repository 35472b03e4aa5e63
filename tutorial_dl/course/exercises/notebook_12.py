"""Checks for the exercises of notebook 12, staleness."""

import numpy as np

from tutorial_dl.course.foundations.rules import delay_bound, delayed_descent

from . import NotYet, call, close, must_have, must_not_be, must_return

CURVATURE, PLAIN, AWARE = 5.0, 0.05, 0.35  # exercise 2


def delayed(answer) -> str:
    """Exercise 1: the path of x[t+1] = x[t] - eta x[t-tau], from x0 on."""
    for eta, tau, x0, steps in (
        (0.1, 1, 1.0, 6),
        (0.1, 3, 1.0, 6),
        (0.4, 0, -2.0, 5),
        (0.3, 2, 1.0, 0),
    ):
        given = f"eta = {eta}, tau = {tau}, x0 = {x0}, steps = {steps}"
        found = call(answer, eta, tau, x0, steps)
        must_return(found)
        right = delayed_descent(eta, tau, x0, steps)
        if np.shape(found) == (steps,) and steps:
            raise NotYet(
                f"{given}: you return {steps} numbers; x0 itself and {steps} after it are needed"
            )
        hint = f"all your gradients are fresh; they should be {tau} updates old"
        must_not_be(found, right, {hint: delayed_descent(eta, 0, x0, steps)}, given)
        close(found, right, f"{given}: the path", 1e-9, 1e-12)
    return "two workers in turn make the path 1, 0.9, 0.8, 0.71, 0.63, ..."


def workers(answer) -> str:
    """Exercise 2: how many workers in turn are stable, with plain and staleness-aware steps."""
    must_have(answer, 2, "two numbers: workers with plain and with staleness-aware steps")
    for what, rate, aware, count in zip(
        ("plain", "staleness-aware"), (PLAIN, AWARE), (False, True), answer, strict=True
    ):
        whole = isinstance(count, (int, float, np.integer, np.floating)) and count == int(count)
        if isinstance(count, bool) or not whole or count < 1:
            raise NotYet(f"{what}: the number of workers must be at least 1, got {count!r}")
        right = max(n for n in range(1, 100) if rate < _bound(n, aware))
        if count > right:
            raise NotYet(
                f"{what}: with {int(count)} workers the rate {rate} is above the bound, "
                f"{_bound(int(count), aware):.3g}"
            )
        if count < right:
            raise NotYet(f"{what}: stable with {int(count)}, but also with more workers")
    return "seven times the rate, and still four workers: steps are shorter where they are stale"


def _bound(count: int, aware: bool) -> float:
    return delay_bound(count - 1, CURVATURE) * (count if aware else 1)
