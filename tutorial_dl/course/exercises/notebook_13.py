"""Checks for the exercises of notebook 13, elastic averaging (EASGD)."""

import numpy as np

from numba_kernels.optimizers import SGD
from tutorial_dl.strategies.rule import Rule
from tutorial_dl.strategies.scripted import Scripted

from . import NotYet, close, must_have, must_not_be

BETA, RATE, WORKERS = 0.9, 0.1, 3  # moving rate of exercise 1; workers of exercise 2


def springs(answer) -> str:
    """Exercise 1: a rule's class, compared with the equations at every step."""
    if not (isinstance(answer, type) and issubclass(answer, Rule)):
        raise NotYet(f"a class derived from Rule is needed, got {answer!r}")
    for workers, every in ((2, 1), (3, 1), (2, 2)):
        run = Scripted(answer(every=every), lambda x: 2 * x, np.zeros(2), workers, SGD(RATE))
        x, c = np.arange(1.0, 2 * workers + 1).reshape(workers, 2), np.zeros(2)
        for i in range(workers):
            run.x[i][:] = x[i]
        for turn in range(3 * workers):
            i, due = turn % workers, (turn // workers + 1) % every == 0
            before = run.x[i].copy()
            run.turn(i)
            where = f"{workers} workers, exchange every {every}: step {turn + 1} (worker {i})"
            g, d = 2 * x[i], BETA / workers * (x[i] - c) if due else 0 * c
            c = c + d
            x[i] = x[i] - d - RATE * g
            mistakes = {"no exchange is due, but a gradient step always is": before}
            if due:
                mistakes = {
                    "the spring is right, but the worker took no gradient step": before - d,
                    "the worker stepped, but its spring did not pull": before - RATE * g,
                }
            must_not_be(run.x[i], x[i], mistakes, where)
            close(run.center, c, f"{where}: the center", 1e-9, 1e-12)
            close(run.x[i], x[i], f"{where}: the worker's weights", 1e-9, 1e-12)
    return "worker and center move by the same d, towards each other"


def moving_rates(answer) -> str:
    """Exercise 2: the moving rates at which 1 - beta / p - beta is 0 and -1."""
    must_have(answer, 2, "two moving rates: one to meet, one above which they swing apart")
    for what, beta, right in zip(("they meet", "they swing"), answer, (0.75, 1.5), strict=True):
        if isinstance(beta, (int, float, np.floating)) and np.isclose(beta, right * 4 / 3):
            raise NotYet(f"{what}: the workers move too, by alpha = beta / {WORKERS}")
        close(beta, right, f"{what}: the moving rate", 1e-3)
    return "p / (p + 1) and 2 p / (p + 1)"
