"""Checks for the exercises of notebook 12, staleness."""

import numpy as np

from tutorial_dl.course.foundations.rules import delay_bound, delayed_descent

from . import NotYet, call, close, counted, must_have, whole

CURVATURE, PLAIN, AWARE = 5.0, 0.05, 0.35  # exercise 2


def delayed(answer) -> str:
    """Exercise 1: the path of x[t+1] = x[t] - eta x[t-tau], from x0 on."""
    cases = (0.1, 1, 1.0, 6), (0.1, 3, 1.0, 6), (0.4, 0, -2.0, 5), (0.3, 2, 1.0, 0)
    for eta, tau, x0, steps in cases:
        given = f"eta = {eta}, tau = {tau}, x0 = {x0}, steps = {steps}"
        found = call(answer, eta, tau, x0, steps)
        right = delayed_descent(eta, tau, x0, steps)
        if np.shape(found) == (steps,) and steps:
            raise NotYet(
                f"{given}: you return {counted(steps, 'number')}; x0 itself and {steps} after it "
                "are needed"
            )
        if np.shape(found) == ():
            raise NotYet(f"{given}: you return the last x; the list of all is asked for")
        fresh = f"all your gradients are fresh; they should be {counted(tau, 'update')} old"
        late = min(tau, steps)
        waits = np.r_[np.full(late, x0), right[: len(right) - late]]
        from_the_end = _from_the_end(eta, tau, x0, steps)
        mistakes = {
            fresh: delayed_descent(eta, 0, x0, steps),
            "your gradients are one update too old": delayed_descent(eta, tau + 1, x0, steps),
            "your steps go uphill": delayed_descent(-eta, tau, x0, steps),
            "the first tau steps count, too: before the start, x was x0": waits,
            "in Python x[-1] is the last number; before the start, x was x0": from_the_end,
        }
        close(found, right, f"{given}: the path", mistakes)
    return "two workers in turn make the path 1, 0.9, 0.8, 0.71, 0.63, ..."


def _from_the_end(eta: float, tau: int, x0: float, steps: int) -> list[float]:
    """The path of a learner who reads x[t - tau] also where t < tau, as far as Python can."""
    x = [x0]
    for t in range(steps):
        x.append(x[t] - eta * x[max(t - tau, -len(x))])
    return x


def workers(answer) -> str:
    """Exercise 2: how many workers in turn are stable, with plain and staleness-aware steps."""
    parts = must_have(answer, 2, "two numbers: workers with plain and with staleness-aware steps")
    rules = ("plain", PLAIN, False), ("staleness-aware", AWARE, True)
    for (what, rate, aware), given in zip(rules, parts, strict=True):
        count = whole(given, 1, None, f"{what}: the number of workers")
        right = max(n for n in range(1, 100) if rate < _bound(n, aware))
        if count > right:
            raise NotYet(
                f"{what}: with {counted(count, 'worker')} the rate {rate} is above the bound, "
                f"{_bound(count, aware):.3g}"
            )
        if count == right - 1:
            raise NotYet(
                f"{what}: this may be the staleness; with p workers in turn it is p - 1, and p is "
                "asked for"
            )
        if count < right:
            raise NotYet(f"{what}: stable with {count}, but also with more workers")
    return "seven times the rate, and still four workers: steps are shorter where they are stale"


def _bound(count: int, aware: bool) -> float:
    return delay_bound(count - 1, CURVATURE) * (count if aware else 1)
