"""Checks of notebook 11, the parameter server."""

from __future__ import annotations

from typing import Any

from tutorial_dl.course.exercises.checking import NotYet, call, close

# Exercise 2: bytes of the weights, bytes a second of the master's link, seconds of a gradient.
BYTES, LINK, COMPUTE, WORKERS = 25_000_000 * 4, 1.25e9, 0.250, 16


def answer(function: Any) -> str:
    """Seconds from a push to its answer, with regular times."""
    for workers, compute, serve in (
        (1, 0.030, 0.010),
        (3, 0.030, 0.010),
        (4, 0.030, 0.010),
        (5, 0.030, 0.010),
        (12, 0.030, 0.010),
        (2, 0.0, 0.004),
        (3, 0.005, 0.020),
    ):
        what = f"the answer with W = {workers}, c = {1e3 * compute:g}, s = {1e3 * serve:g} ms"
        right = _answer(workers, compute, serve)
        close(call(function, workers, compute, serve), right, what, rtol=1e-9)
    return "s while the master has gaps, W s - c when it is full"


def _answer(workers: int, compute: float, serve: float) -> float:
    return max(serve, workers * serve - compute)


def plan(answer: Any) -> str:
    """The largest speed-up, and how many gradients an exchange 16 workers need."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise NotYet("two numbers are asked for: speed-up and gradients an exchange")
    serve = 2 * BYTES / LINK
    close(answer[0], 1 + COMPUTE / serve, "the largest speed-up", rtol=0.01)
    every = answer[1]
    if isinstance(every, bool) or int(every) != every or every < 1:
        raise NotYet(f"gradients an exchange are 1, 2, 3, ..., not {every!r}")
    busy = WORKERS * serve / (every * COMPUTE + serve)
    if busy > 1:
        raise NotYet(
            f"with {every} gradients an exchange, {WORKERS} workers ask for {busy:.2f} seconds of "
            "the master in each second"
        )
    if every > 1 and WORKERS * serve <= (every - 1) * COMPUTE + serve:
        raise NotYet(f"{every} gradients an exchange are enough, and more than needed")
    return f"{1 + COMPUTE / serve:.2f} at most; {every} gradients keep the master {busy:.0%} busy"
