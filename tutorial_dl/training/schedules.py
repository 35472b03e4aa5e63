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

Rates and factors must be finite and at least 0, `steps`, `every` and k above 0; every function here
raises ValueError otherwise.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from ..config import ScheduleConfig

__all__ = [
    "Schedule", "constant", "cosine", "exponential", "learning_rates", "linear_rule", "piecewise",
    "planned", "schedule_of", "square_root_rule", "step_decay", "warm_up",
]  # fmt: skip

POINTS = 1000  # of a line in a figure: more than it has pixels


class Schedule:
    """A learning rate as a function of the step: `schedule(step)` -> float, at least 0.

    `rate` is that function of the step (an int from 0 on); `text` is the schedule's `repr`.
    """

    def __init__(self, rate: Callable[[int], float], text: str):
        self.rate, self.text = rate, text

    def __call__(self, step: int) -> float:
        return float(self.rate(step))

    def __repr__(self) -> str:
        return self.text

    def plot(self, steps: int, ax=None):
        """Plot the rate over the first `steps` steps (on `ax` if given); returns the figure."""
        return learning_rates({self.text: self}, steps, ax)


def constant(rate: float) -> Schedule:
    """The same `rate` at every step."""
    _check(rate=rate)
    return Schedule(lambda step: rate, f"{rate:g}")


def linear_rule(rate: float, k: float) -> float:
    """k eta: the learning rate for batches k times as large as those that eta = `rate` is good for.

    Example:
        >>> linear_rule(0.1, 8)
        0.8
    """
    _check(rate=rate, k=k, above="k")
    return k * rate


def square_root_rule(rate: float, k: float) -> float:
    """sqrt(k) eta: more cautious than `linear_rule`, with the same arguments.

    Example:
        >>> square_root_rule(0.1, 16)
        0.4
    """
    _check(rate=rate, k=k, above="k")
    return math.sqrt(k) * rate


def step_decay(rate: float, every: int, factor: float = 0.1) -> Schedule:
    """Start at `rate`; multiply it by `factor` after every `every` steps.

    Example:
        >>> rate = step_decay(0.8, every=100, factor=0.5)
        >>> rate(99), rate(100), rate(200)
        (0.8, 0.4, 0.2)
    """
    _check(rate=rate, every=every, factor=factor, above="every")
    text = f"step_decay({rate:g}, every={every}, factor={factor:g})"
    return Schedule(lambda step: rate * factor ** (step // every), text)


def piecewise(rates: dict[int, float]) -> Schedule:
    """`rates[s]` from step s on, up to the next step in `rates`, of which the first must be 0.

    Example:
        >>> rate = piecewise({0: 0.1, 500: 0.01})
        >>> rate(499), rate(500)
        (0.1, 0.01)
    """
    for rate in rates.values():
        _check(rate=rate)
    if 0 not in rates or min(rates) < 0:
        raise ValueError(f"the first step of rates must be 0, got steps {sorted(rates)}")
    starts = sorted(rates)
    text = f"piecewise({{{', '.join(f'{s}: {rates[s]:g}' for s in starts)}}})"
    return Schedule(lambda step: rates[max(s for s in starts if s <= step)], text)


def exponential(rate: float, steps: int, factor: float = 0.1) -> Schedule:
    """rate factor^(step / steps): a smooth decay by `factor` over every `steps` steps."""
    _check(rate=rate, steps=steps, factor=factor, above="steps")
    text = f"exponential({rate:g}, {steps}, factor={factor:g})"
    return Schedule(lambda step: rate * factor ** (step / steps), text)


def cosine(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """From `rate` to `end` along half a cosine over `steps` steps; `end` afterwards.

    Loshchilov and Hutter, arXiv 1608.03983, equation 5, without restarts.

    Example:
        >>> rate = cosine(0.4, 1000)
        >>> rate(0), round(rate(500), 6), rate(1000)
        (0.4, 0.2, 0.0)
    """
    _check(rate=rate, steps=steps, end=end, above="steps")

    def at(step: int) -> float:
        return end + (rate - end) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2

    return Schedule(at, f"cosine({rate:g}, {steps}{f', end={end:g}' if end else ''})")


def warm_up(then: Schedule | float, steps: int, start: float = 0.0) -> Schedule:
    """Rise in a straight line from `start` to `then(steps)` over `steps` steps, then follow `then`.

    Goyal et al., arXiv 1706.02677, section 2.2, start at the rate of one small batch and rise to k
    times that rate over 5 epochs. `then` is not shifted: its steps count from the start of the run.
    It may be a number; `steps` may be 0.

    Example:
        >>> rate = warm_up(0.5, 4, start=0.25)
        >>> rate(0), rate(2), rate(4), rate(100)
        (0.25, 0.375, 0.5, 0.5)
    """
    then = schedule_of(then)
    _check(steps=steps, start=start)

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


def _check(above: str = "", **numbers: float) -> None:
    """Raise ValueError for a number that is out of its range; that called `above` may not be 0."""
    for name, value in numbers.items():
        if not (0 <= value < math.inf) or (name == above and value == 0):
            least = "above 0" if name == above else "at least 0"
            raise ValueError(f"{name} must be finite and {least}, got {value}")


# For the command line --------------------------------------------------------------------------

# ("noise" grows the batch, and the rate stays: callbacks.GrowBatch.)
BATCH_RULES = {
    "linear": linear_rule, "square-root": square_root_rule, "noise": lambda rate, _: rate,
}  # fmt: skip
DECAYS = {  # (rate, steps of the run) -> Schedule
    "constant": lambda rate, steps: constant(rate),
    "step": lambda rate, steps: step_decay(rate, -(-steps // 3), 0.1),
    "exponential": lambda rate, steps: exponential(rate, steps, 0.01),
    "cosine": cosine,
}


def planned(
    asked: ScheduleConfig, rate: float, per_epoch: int | None, batch_size: int
) -> Schedule | None:
    """The schedule that the options of a run ask for; None if the rate stays as it is.

    `step` multiplies the rate by 0.1 after each third of the run, `exponential` by 0.01 over the
    whole run; `cosine` ends at 0. With a batch rule, a warm-up begins at the rate before that rule;
    without one, at 0. `rate` is the optimizer's learning rate, `per_epoch` counts updates (None:
    not known).
    """
    if asked.schedule == "constant" and not asked.warm_up and asked.batch_rule is None:
        return None
    if per_epoch is None and (asked.schedule != "constant" or asked.warm_up):
        raise ValueError(
            "a schedule or a warm-up needs the number of batches per epoch, which the data do not "
            "tell: data.stream(source, steps=...)"
        )
    start, per_epoch = 0.0, per_epoch or 0
    if asked.batch_rule is not None:
        start = rate
        rate = BATCH_RULES[asked.batch_rule](rate, batch_size / asked.base_batch_size)
    found = DECAYS[asked.schedule](rate, asked.epochs * per_epoch)
    steps = round(asked.warm_up * per_epoch)
    return warm_up(found, steps, start) if steps else found


# Figure ----------------------------------------------------------------------------------------


def learning_rates(schedules: Mapping[str, Callable[[int], float]], steps: int, ax=None):
    """Plot the learning rate over a run, one line per schedule; returns the figure.

    Args:
        schedules: legend entry -> function from the step (0, 1, ...) to the learning rate.
        steps: steps of the run, 1 or more.
        ax: where to draw; a new figure if None.
    """
    from .. import figure_style as style

    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    at = np.unique(np.linspace(0, steps, min(POINTS, steps) + 1).round().astype(int))
    with style.axes(ax) as ax:
        for number, (name, rate) in enumerate(schedules.items()):
            ax.plot(at, [rate(int(s)) for s in at], label=name, **style.line(number))
        ax.set_title("Learning rate by step", loc="left")
        ax.set(xlabel="step", ylabel="learning rate", xlim=(0, steps))
        ax.set_ylim(bottom=0)
        ax.legend()
    return ax.figure
