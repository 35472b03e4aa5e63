"""Checks for the exercises of notebook 13, elastic averaging (EASGD)."""

import numpy as np

from numba_kernels.optimizers import SGD
from tutorial_dl.strategies.rule import Rule
from tutorial_dl.strategies.scripted import Scripted

from . import NotYet, close, must_not_be

BETA, RATE = 0.9, 0.1  # moving rate, learning rate


def springs(answer) -> str:
    """A rule's class, compared with the equations at every step."""
    if isinstance(answer, Rule):
        raise NotYet("the class itself is asked for: Springs, not Springs()")
    if not (isinstance(answer, type) and issubclass(answer, Rule)):
        raise NotYet(f"a class derived from Rule is needed, got {answer!r}")
    for workers, every in ((2, 1), (3, 1), (2, 2)):
        run = Scripted(answer(every=every), lambda x: 2 * x, np.zeros(2), workers, SGD(RATE))
        x, c = np.arange(1.0, 2 * workers + 1).reshape(workers, 2), np.zeros(2)
        for i in range(workers):
            run.x[i][:] = x[i]
        for turn in range(3 * workers):
            i, due = turn % workers, (turn // workers + 1) % every == 0
            before, center = run.x[i].copy(), c
            run.turn(i)
            where = f"{workers} workers, exchange every {every}: step {turn + 1} (worker {i})"
            g, d = 2 * x[i], BETA / workers * (x[i] - c) if due else 0 * c
            c = c + d
            x[i] = x[i] - d - RATE * g
            stepped = before - RATE * g
            late = center + BETA / workers * (stepped - center)
            kept = "x has not changed; x = ... makes a new array, x -= ... changes x itself"
            own = {
                kept: before,
                "the spring is right, but x made no gradient step; x -= ... makes it": before - d,
                "the worker stepped, but its spring did not pull": stepped,
                "the spring pushes the worker away from the center": stepped + d,
            }
            replaced = "center = ... makes a new array, center += ... does not"
            common = {
                f"the center has not moved; {replaced}": center,
                "α is the moving rate divided by the number of workers": center + workers * d,
                "the center moves away from the worker": center - d,
                "the exchange comes before the gradient step: send x as it was": late,
            }
            if not due:
                own, common = {"no exchange is due, but a gradient step always is": before}, {}
            must_not_be(run.x[i], x[i], own, where)
            close(run.center, c, f"{where}: the center", common)
            close(run.x[i], x[i], f"{where}: the worker's weights")
    return "worker and center move by the same d, towards each other"
