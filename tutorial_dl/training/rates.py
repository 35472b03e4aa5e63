"""The learning rate that the words of the command line ask for."""

from __future__ import annotations

from .schedules import (
    Schedule,
    constant,
    cosine,
    exponential,
    linear_rule,
    square_root_rule,
    step_decay,
    warm_up,
)

RULES = {"linear": linear_rule, "square-root": square_root_rule}
SCHEDULES = {  # (rate, steps of the run) -> Schedule
    "constant": lambda rate, steps: constant(rate),
    "step": lambda rate, steps: step_decay(rate, -(-steps // 3), 0.1),
    "exponential": lambda rate, steps: exponential(rate, steps, 0.01),
    "cosine": cosine,
}


def planned(options, rate: float, per_epoch: int) -> Schedule | None:
    """The schedule for epochs of `per_epoch` updates; None where the rate stays what it is.

    `step` multiplies by 0.1 after each third of the run, `exponential` by 0.01 over all of it,
    `cosine` ends at 0. A warm-up begins at the rate before the batch rule, without one at 0.
    """
    if options.schedule == "constant" and not options.warm_up and options.batch_rule is None:
        return None
    start = 0.0
    if options.batch_rule is not None:
        start = rate
        rate = RULES[options.batch_rule](rate, options.batch_size / options.base_batch_size)
    found = SCHEDULES[options.schedule](rate, options.epochs * per_epoch)
    steps = round(options.warm_up * per_epoch)
    return warm_up(found, steps, start) if steps else found
