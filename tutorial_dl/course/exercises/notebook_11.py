"""Checks for the exercises of notebook 11, the parameter server."""

from . import NotYet, call, close, counted, must_be, must_have, whole

# Exercise 2: bytes of the weights, bytes per second of the master's link, seconds per gradient.
BYTES, LINK, COMPUTE, WORKERS = 25_000_000 * 4, 1.25e9, 0.250, 16


def answer(function) -> str:
    """Exercise 1: seconds from a push to its answer, with regular times."""
    for workers, c, s in (
        (1, 0.030, 0.010), (3, 0.030, 0.010), (4, 0.030, 0.010), (5, 0.030, 0.010),
        (12, 0.030, 0.010), (2, 0.0, 0.004), (3, 0.005, 0.020),
    ):  # fmt: skip
        what = f"the answer with W = {workers}, t_c = {1e3 * c:g}, t_s = {1e3 * s:g} ms"
        found, right = call(function, workers, c, s), _answer(workers, c, s)
        saturated = "the master is saturated here: a worker has to wait for its turn"
        mistakes = {saturated: s} if right > s else {}
        mistakes |= {
            "seconds are asked for, yours are milliseconds": 1e3 * right,
            "no answer comes in a negative time: is the master free here?": workers * s - c,
            "serving takes time, too: an answer takes at least t_s": max(0.0, workers * s - c),
            "the master is not saturated here; others do not ask at the same time": workers * s,
            "this is only the wait; serving itself is part of the answer": right - s,
            "computing is not part of the answer": right + c,
        }
        close(found, right, what, mistakes)
    return "t_s while the master has idle time, W t_s - t_c when it is saturated"


def _answer(workers: int, compute: float, serve: float) -> float:
    return max(serve, workers * serve - compute)


def plan(answer) -> str:
    """Exercise 2: the largest speed-up, and the gradients per exchange that 16 workers need."""
    most, given = must_have(answer, 2, "two numbers: the speed-up, and the gradients per exchange")
    serve = 2 * BYTES / LINK
    ratio = COMPUTE / serve
    mistakes = {
        "an exchange has two ways: gradient in and weights out": 1 + 2 * ratio,
        "the link's 10 Gbit per second are bits; a byte has 8": 1 + ratio * 8,
        "a weight in float32 has 4 bytes": 1 + ratio * 4,
        "a weight in float32 has 4 bytes, not 8": 1 + ratio / 2,
        "count the seconds in which a worker is served, too": ratio,
        "t_c and t_s are the other way round": 1 + 1 / ratio,
        "more workers than the master can serve gain nothing": WORKERS,
    }
    must_be(most, 1 + ratio, "the largest speed-up", mistakes)
    every = whole(given, 1, None, "the number of gradients per exchange")
    busy = WORKERS * serve / (every * COMPUTE + serve)
    if busy > 1:
        raise NotYet(
            f"with {counted(every, 'gradient')} per exchange, {WORKERS} workers need {busy:.2f} "
            "seconds of the master's time in each second"
        )
    if every > 1 and WORKERS * serve <= (every - 1) * COMPUTE + serve:
        raise NotYet(f"{every} gradients per exchange are more than needed")
    return f"{1 + ratio:.2f} at most; {every} gradients keep the master {busy:.0%} busy"
