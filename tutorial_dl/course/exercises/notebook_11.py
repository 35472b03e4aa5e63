"""Checks for the exercises of notebook 11, the parameter server."""

from . import NotYet, call, close, must_have

# Exercise 2: bytes of the weights, bytes per second of the master's link, seconds per gradient.
BYTES, LINK, COMPUTE, WORKERS = 25_000_000 * 4, 1.25e9, 0.250, 16


def answer(function) -> str:
    """Exercise 1: seconds from a push to its answer, with regular times."""
    for workers, c, s in (
        (1, 0.030, 0.010), (3, 0.030, 0.010), (4, 0.030, 0.010), (5, 0.030, 0.010),
        (12, 0.030, 0.010), (2, 0.0, 0.004), (3, 0.005, 0.020),
    ):  # fmt: skip
        what = f"the answer with W = {workers}, c = {1e3 * c:g}, s = {1e3 * s:g} ms"
        close(call(function, workers, c, s), _answer(workers, c, s), what, rtol=1e-9)
    return "s while the master has idle time, W s - c when it is saturated"


def _answer(workers: int, compute: float, serve: float) -> float:
    return max(serve, workers * serve - compute)


def plan(answer) -> str:
    """Exercise 2: the largest speed-up, and the gradients per exchange that 16 workers need."""
    must_have(answer, 2, "two numbers: the speed-up, and the gradients per exchange")
    serve = 2 * BYTES / LINK
    close(answer[0], 1 + COMPUTE / serve, "the largest speed-up", rtol=0.01)
    every = answer[1]
    if isinstance(every, bool) or int(every) != every or every < 1:
        raise NotYet(f"gradients per exchange must be a whole number above 0, got {every!r}")
    busy = WORKERS * serve / (every * COMPUTE + serve)
    if busy > 1:
        raise NotYet(
            f"with {every} gradients per exchange, {WORKERS} workers need {busy:.2f} seconds of "
            "the master's time in each second"
        )
    if every > 1 and WORKERS * serve <= (every - 1) * COMPUTE + serve:
        raise NotYet(f"{every} gradients per exchange are more than needed")
    return f"{1 + COMPUTE / serve:.2f} at most; {every} gradients keep the master {busy:.0%} busy"
