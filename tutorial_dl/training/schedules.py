"""Learning rates as functions of the step: rules for large batches, warm-up, and decay.

    rate = schedules.linear_rule(0.1, 8)                     # 0.8 for batches 8 times as large
    rate = schedules.warm_up(schedules.cosine(rate, 2000), 200, start=0.1)
    rate(0), rate(200), rate(2000)                           # 0.1, 0.78, 0.0
    rate.plot(2000)
    Trainer(model, dataset, learning_rate=rate)

A step is one update, of all ranks together, counted from 0. A batch k times as large makes k times
fewer of them an epoch, so each has to go further. By how much: the linear rule holds while k small
steps would have gone nearly the same way (Goyal et al., arXiv 1706.02677); the square-root rule
keeps the noise of a step's sum as it was (Krizhevsky, arXiv 1404.5997). Either fails in the first
steps, where the gradient changes quickly: hence the warm-up.

Any function of the step that returns a rate will do for a Trainer; these can also plot themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = [
    "Schedule", "constant", "cosine", "exponential", "linear_rule", "piecewise", "schedule_of",
    "square_root_rule", "step_decay", "warm_up",
]  # fmt: skip


class Schedule:
    """A learning rate as a function of the step: `schedule(step)` -> float, 0 or more.

    Args:
        rate: the function
        text: what it is, as `repr` says it
    """

    def __init__(self, rate: Callable[[int], float], text: str):
        self.rate, self.text = rate, text

    def __call__(self, step: int) -> float:
        return float(self.rate(step))

    def __repr__(self) -> str:
        return self.text

    def plot(self, steps: int, ax=None):
        """The figure of the rate over the first `steps` steps."""
        from .schedule_figure import learning_rates

        return learning_rates({self.text: self}, steps, ax)


def constant(rate: float) -> Schedule:
    """`rate` at every step."""
    _check("rate", rate)
    return Schedule(lambda step: rate, f"{rate:g}")


def linear_rule(rate: float, k: float) -> float:
    """k eta: the rate for batches k times as large as those for which `rate` was found."""
    _check("rate", rate)
    _check("k", k, above=True)
    return k * rate


def square_root_rule(rate: float, k: float) -> float:
    """sqrt(k) eta: the more careful rule."""
    _check("rate", rate)
    _check("k", k, above=True)
    return math.sqrt(k) * rate


def step_decay(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """`rate`, multiplied by `factor` after each `every` steps."""
    _check("rate", rate)
    _check("every", every, above=True)
    _check("factor", factor)
    text = f"step_decay({rate:g}, every={every}, factor={factor:g})"
    return Schedule(lambda step: rate * factor ** (step // every), text)


def piecewise(rates: dict[int, float]) -> Schedule:
    """`rates[s]` from step s on; a rate for step 0 is needed."""
    for rate in rates.values():
        _check("rate", rate)
    if 0 not in rates or min(rates) < 0:
        raise ValueError(f"rates from steps {sorted(rates)}; one from step 0 on is needed")
    starts = sorted(rates)
    text = f"piecewise({{{', '.join(f'{s}: {rates[s]:g}' for s in starts)}}})"
    return Schedule(lambda step: rates[max(s for s in starts if s <= step)], text)


def exponential(rate: float, steps: int, factor: float = 0.1) -> Schedule:
    """rate factor^(step / steps): a smooth decay, by `factor` over each `steps` steps."""
    _check("rate", rate)
    _check("steps", steps, above=True)
    _check("factor", factor)
    text = f"exponential({rate:g}, {steps}, factor={factor:g})"
    return Schedule(lambda step: rate * factor ** (step / steps), text)


def cosine(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """From `rate` to `end` along half a cosine over `steps` steps, and `end` afterwards.

    Loshchilov and Hutter, arXiv 1608.03983, equation 5, without restarts.
    """
    _check("rate", rate)
    _check("steps", steps, above=True)
    _check("end", end)

    def at(step: int) -> float:
        return end + (rate - end) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2

    return Schedule(at, f"cosine({rate:g}, {steps}{f', end={end:g}' if end else ''})")


def warm_up(then: Schedule | float, steps: int, start: float = 0.0) -> Schedule:
    """In a straight line from `start` to what `then` is at step `steps`; `then` from there on.

    Goyal et al., arXiv 1706.02677, section 2.2: `start` the rate of one small batch, `then` k
    times as much, over 5 epochs. `then` is not shifted: its steps are those of the whole run.
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
    """A Schedule from one, from a number, or from any function of the step."""
    if isinstance(rate, Schedule):
        return rate
    if callable(rate):
        return Schedule(rate, getattr(rate, "__name__", str(rate)))
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(f"learning rate {rate!r}: a number or a function of the step is needed")
    return constant(rate)


def _check(name: str, value: float, above: bool = False) -> None:
    if not (0 <= value < math.inf) or (above and value == 0):
        raise ValueError(f"{name} is {value}; a finite number {'above' if above else 'from'} 0 "
                         f"{'' if above else 'up '}is needed")  # fmt: skip
