"""Checks of notebook 09, large batches."""

import numpy as np

from . import NotYet, call, close, must_have, number_of, whole

# Exercise 2: the rate found for batch BASE, momentum, largest curvature, samples per epoch.
RATE, BASE, MOMENTUM, CURVATURE, SAMPLES = 0.05, 64, 0.9, 5.0, 50_000
BATCHES = [BASE * 2**j for j in range(10)]  # 64 to 32,768


def warm_up(answer) -> str:
    """Check the rate at each step: a straight line from `start` to `rate`, then `rate`."""
    for start, rate, steps in ((0.02, 0.64, 10), (0.0, 0.1, 4), (0.1, 0.1, 3), (0.5, 0.1, 5)):
        given = f"start = {start}, rate = {rate}, steps = {steps}"

        before = np.array([_rate_at(answer, k, start, rate, steps) for k in range(steps)])
        k, rise = np.arange(steps), rate - start
        right, early = start + rise * k / steps, start + rise * k / max(1, steps - 1)
        mistakes = {
            f"yours is one step ahead; step 0 should have the rate {start}": right + rise / steps,
            "the rate should be reached at step `steps`, not one step earlier": early,
            "it begins at 0, not at start": rate * k / steps,
            "there is no warm-up": np.full(steps, rate),
            "(rate - start) is what is to be added, not rate": start + rate * k / steps,
        }
        close(before, right, f"{given}: the rate at steps 0 to {steps - 1}", mistakes)
        for step in (steps, steps + 1, 10 * steps):
            after = _rate_at(answer, step, start, rate, steps)
            close(after, rate, f"{given}: the rate at step {step}")
    for step in (0, 7):
        after = _rate_at(answer, step, 0.02, 0.64, 0)
        close(after, 0.64, f"steps = 0: the rate at step {step}")
    return "ten steps from 0.02 to 0.64, and constant after that"


def _rate_at(answer, step: int, *more) -> float:
    return number_of(call(answer, step, *more), f"the rate at step {step}")


def batches(answer) -> str:
    """Check the largest stable batches by the linear and by the square-root rule."""
    parts = must_have(answer, 2, "two numbers: one batch for each rule")
    limit = 2 * (1 + MOMENTUM) / CURVATURE
    powers = {"linear": 1.0, "square-root": 0.5}
    left = []
    for (rule, power), given in zip(powers.items(), parts, strict=True):
        batch = number_of(given, f"{rule} rule: the batch")
        sizes = [b for b in BATCHES if abs(b - batch) < 1e-6 * b]
        if not sizes:
            raise NotYet(
                f"{rule} rule: the batch must be one of {BASE}, {2 * BASE}, ..., {BATCHES[-1]}, "
                f"got {given!r}"
            )
        batch = whole(sizes[0], BASE, None, "the batch")
        rates = {b: RATE * (b / BASE) ** power for b in BATCHES}
        if rates[batch] >= limit:
            raise NotYet(
                f"{rule} rule: at batch {batch} the rate is {rates[batch]:.3g}, above the limit"
            )
        if batch == max(b for b in BATCHES if rates[b] < 2 / CURVATURE):
            raise NotYet(f"{rule} rule: {batch} is the largest without momentum; here it is 0.9")
        if batch != max(b for b in BATCHES if rates[b] < limit):
            raise NotYet(f"{rule} rule: {batch} is stable, but not the largest stable one")
        left.append(-(-SAMPLES // batch))
    return (
        f"both rates stay below {limit:.3g}; they leave {left[0]} and {left[1]} updates per epoch, "
        f"where batches of {BASE} make {-(-SAMPLES // BASE)}"
    )
