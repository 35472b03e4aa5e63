"""The learning rate schedule that the command-line options ask for."""

from __future__ import annotations

from ..config import RunConfig
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


def planned(config: RunConfig, rate: float, per_epoch: int) -> Schedule | None:
    """Make the schedule of a run.

    `step` multiplies the rate by 0.1 after each third of the run, `exponential` by 0.01 over the
    whole run; `cosine` ends at 0. With a batch rule, a warm-up begins at the rate before that rule;
    without one, at 0.

    Args:
        config: all options
        rate: the learning rate of the optimizer
        per_epoch: updates per epoch

    Returns:
        The schedule, or None if the rate stays as it is.
    """
    asked = config.schedule
    if asked.schedule == "constant" and not asked.warm_up and asked.batch_rule is None:
        return None
    start = 0.0
    if asked.batch_rule is not None:
        start = rate
        rate = RULES[asked.batch_rule](rate, config.data.batch_size / asked.base_batch_size)
    found = SCHEDULES[asked.schedule](rate, asked.epochs * per_epoch)
    steps = round(asked.warm_up * per_epoch)
    return warm_up(found, steps, start) if steps else found
