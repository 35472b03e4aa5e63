"""Checks of notebook 09, large batches."""

import numpy as np

from . import NotYet, call, close, must_have, must_not_be, must_return

# Exercise 2: the rate found for batch BASE, momentum, largest curvature, samples per epoch.
RATE, BASE, MOMENTUM, CURVATURE, SAMPLES = 0.05, 64, 0.9, 5.0, 50_000
BATCHES = [BASE * 2**j for j in range(10)]  # 64 to 32,768


def warm_up(answer) -> str:
    """Check the rate at each step: a straight line from `start` to `rate`, then `rate`."""
    for start, rate, steps in ((0.02, 0.64, 10), (0.0, 0.1, 4), (0.1, 0.1, 3), (0.5, 0.1, 5)):
        given = f"start = {start}, rate = {rate}, steps = {steps}"
        before = np.array([call(answer, s, start, rate, steps) for s in range(steps)], object)
        right = start + (rate - start) * np.arange(steps) / steps
        for value in before:
            must_return(value)
        ahead = start + (rate - start) * (np.arange(steps) + 1) / steps
        hint = f"yours is one step ahead; step 0 should have the rate {start}"
        must_not_be(before, right, {hint: ahead}, given)
        close(before, right, f"{given}: the rate at steps 0 to {steps - 1}", 1e-9, 1e-12)
        for step in (steps, steps + 1, 10 * steps):
            after = call(answer, step, start, rate, steps)
            close(after, rate, f"{given}: the rate at step {step}", 1e-9)
    for step in (0, 7):
        close(call(answer, step, 0.02, 0.64, 0), 0.64, f"steps = 0: the rate at step {step}", 1e-9)
    return "ten steps from 0.02 to 0.64, and constant after that"


def batches(answer) -> str:
    """Check the largest stable batches by the linear and by the square-root rule."""
    must_have(answer, 2, "two numbers: one batch for each rule")
    limit = 2 * (1 + MOMENTUM) / CURVATURE
    powers = {"linear": 1.0, "square-root": 0.5}
    left = []
    for (rule, power), batch in zip(powers.items(), answer, strict=True):
        if isinstance(batch, bool) or batch not in BATCHES:
            raise NotYet(
                f"{rule} rule: the batch must be one of {BASE}, {2 * BASE}, ..., {BATCHES[-1]}, "
                f"got {batch!r}"
            )
        rates = {b: RATE * (b / BASE) ** power for b in BATCHES}
        if rates[batch] >= limit:
            raise NotYet(
                f"{rule} rule: at batch {batch} the rate is {rates[batch]:.3g}, above the limit"
            )
        if batch != max(b for b in BATCHES if rates[b] < limit):
            raise NotYet(f"{rule} rule: {batch} is stable, but not the largest stable one")
        left.append(-(-SAMPLES // int(batch)))
    return (
        f"both rates stay below {limit:.3g}; they leave {left[0]} and {left[1]} updates per epoch, "
        f"where batches of {BASE} make {-(-SAMPLES // BASE)}"
    )
