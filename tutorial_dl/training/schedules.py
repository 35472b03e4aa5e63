"""Learning rate schedules: functions of the step for large batches, warm-up and decay.

    rate = schedules.linear_rule(0.1, 8)                     # 0.8, for batches 8 times as large
    rate = schedules.warm_up(schedules.cosine(rate, 2000), 200, start=0.1)
    rate(0), rate(200), rate(2000)                           # 0.1, 0.78, 0.0
    rate.plot(2000)
    Trainer(model, dataset, learning_rate=rate)

A step is one update of all ranks together, counted from 0. With batches k times as large an epoch
has k times fewer steps, so each must go further. The linear rule, k times the rate, holds as long
as k small steps would have gone in nearly the same direction (Goyal et al., arXiv 1706.02677). The
square-root rule keeps the variance of a step as it was (Krizhevsky, arXiv 1404.5997). Both fail in
the first steps, where the gradient changes quickly: hence the warm-up.

A Trainer takes any function of the step that returns a rate; a Schedule can also plot itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = [
    "Schedule", "constant", "cosine", "exponential", "linear_rule", "piecewise", "schedule_of",
    "square_root_rule", "step_decay", "warm_up",
]  # fmt: skip


class Schedule:
    """A learning rate as a function of the step: `schedule(step)` -> float, at least 0.

    Args:
        rate: the function, from the step (an int from 0 on) to the learning rate
        text: what `repr` returns, for labels and messages
    """

    def __init__(self, rate: Callable[[int], float], text: str):
        self.rate, self.text = rate, text

    def __call__(self, step: int) -> float:
        return float(self.rate(step))

    def __repr__(self) -> str:
        return self.text

    def plot(self, steps: int, ax=None):
        """Plot the rate over the first `steps` steps (on `ax` if given); returns the figure."""
        from .schedule_figure import learning_rates

        return learning_rates({self.text: self}, steps, ax)


def constant(rate: float) -> Schedule:
    """The same `rate` at every step."""
    _check("rate", rate)
    return Schedule(lambda step: rate, f"{rate:g}")


def linear_rule(rate: float, k: float) -> float:
    """k eta: the learning rate for batches k times as large as those that `rate` is good for.

    Args:
        rate: eta, the learning rate of the small batch, at least 0
        k: large batch size / small batch size, above 0

    Raises:
        ValueError: an argument is out of its range

    Example:
        >>> linear_rule(0.1, 8)
        0.8
    """
    _check("rate", rate)
    _check("k", k, above=True)
    return k * rate


def square_root_rule(rate: float, k: float) -> float:
    """sqrt(k) eta: more cautious than `linear_rule`, with the same arguments.

    Example:
        >>> square_root_rule(0.1, 16)
        0.4
    """
    _check("rate", rate)
    _check("k", k, above=True)
    return math.sqrt(k) * rate


def step_decay(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """Start at `rate`; multiply it by `factor` after every `every` steps.

    Args:
        rate: the learning rate of step 0, at least 0
        every: steps between changes, above 0
        factor: at least 0

    Raises:
        ValueError: an argument is out of its range

    Example:
        >>> rate = step_decay(0.8, every=100, factor=0.5)
        >>> rate(99), rate(100), rate(200)
        (0.8, 0.4, 0.2)
    """
    _check("rate", rate)
    _check("every", every, above=True)
    _check("factor", factor)
    text = f"step_decay({rate:g}, every={every}, factor={factor:g})"
    return Schedule(lambda step: rate * factor ** (step // every), text)


def piecewise(rates: dict[int, float]) -> Schedule:
    """`rates[s]` from step s on, up to the next step in `rates`.

    Args:
        rates: learning rates by the step at which they begin; one must begin at step 0

    Raises:
        ValueError: no rate begins at step 0, a step is negative, or a rate is

    Example:
        >>> rate = piecewise({0: 0.1, 500: 0.01})
        >>> rate(499), rate(500)
        (0.1, 0.01)
    """
    for rate in rates.values():
        _check("rate", rate)
    if 0 not in rates or min(rates) < 0:
        raise ValueError(f"the first step of rates must be 0, got steps {sorted(rates)}")
    starts = sorted(rates)
    text = f"piecewise({{{', '.join(f'{s}: {rates[s]:g}' for s in starts)}}})"
    return Schedule(lambda step: rates[max(s for s in starts if s <= step)], text)


def exponential(rate: float, steps: int, factor: float = 0.1) -> Schedule:
    """rate factor^(step / steps): a smooth decay by `factor` over every `steps` steps.

    Args:
        rate: the learning rate of step 0, at least 0
        steps: above 0
        factor: at least 0

    Raises:
        ValueError: an argument is out of its range
    """
    _check("rate", rate)
    _check("steps", steps, above=True)
    _check("factor", factor)
    text = f"exponential({rate:g}, {steps}, factor={factor:g})"
    return Schedule(lambda step: rate * factor ** (step / steps), text)


def cosine(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """From `rate` to `end` along half a cosine over `steps` steps; `end` afterwards.

    Loshchilov and Hutter, arXiv 1608.03983, equation 5, without restarts.

    Args:
        rate: the learning rate of step 0, at least 0
        steps: above 0
        end: the last learning rate, at least 0

    Raises:
        ValueError: an argument is out of its range

    Example:
        >>> rate = cosine(0.4, 1000)
        >>> rate(0), round(rate(500), 6), rate(1000)
        (0.4, 0.2, 0.0)
    """
    _check("rate", rate)
    _check("steps", steps, above=True)
    _check("end", end)

    def at(step: int) -> float:
        return end + (rate - end) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2

    return Schedule(at, f"cosine({rate:g}, {steps}{f', end={end:g}' if end else ''})")


def warm_up(then: Schedule | float, steps: int, start: float = 0.0) -> Schedule:
    """Rise in a straight line from `start` to `then(steps)` over `steps` steps, then follow `then`.

    Goyal et al., arXiv 1706.02677, section 2.2, start at the rate of one small batch and rise to k
    times that rate over 5 epochs. `then` is not shifted: its steps count from the start of the run.

    Args:
        then: a Schedule, a function of the step, or a number
        steps: length of the warm-up, at least 0
        start: the learning rate of step 0, at least 0

    Raises:
        ValueError: `steps` or `start` is out of its range

    Example:
        >>> rate = warm_up(0.5, 4, start=0.25)
        >>> rate(0), rate(2), rate(4), rate(100)
        (0.25, 0.375, 0.5, 0.5)
    """
    then = schedule_of(then)
    _check("steps", steps)
    _check("start", start)

    def at(step: int) -> float:
        if step >= steps:
            return then(step)
        return start + (then(steps) - start) * step / steps

    return Schedule(at, f"warm_up({then}, {steps}{f', start={start:g}' if start else ''})")


def schedule_of(rate) -> Schedule:
    """Make a Schedule of a number or of any function of the step; a Schedule is returned as it is.

    Raises:
        TypeError: `rate` is none of these
    """
    if isinstance(rate, Schedule):
        return rate
    if callable(rate):
        return Schedule(rate, getattr(rate, "__name__", str(rate)))
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(f"learning rate must be a number or a function of the step, got {rate!r}")
    return constant(rate)


def _check(name: str, value: float, above: bool = False) -> None:
    if not (0 <= value < math.inf) or (above and value == 0):
        least = "above 0" if above else "at least 0"
        raise ValueError(f"{name} must be finite and {least}, got {value}")
