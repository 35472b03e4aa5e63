"""Stand-ins for devices and links, which sleep as long as real ones would need.

A machine with two cores cannot compute for many devices at once. So a gradient sleeps for its
time, as a core does while its GPU computes, and an exchange sleeps for that of its link. All else
is real: ranks, messages, order of arrival. `seconds` is a function, called each time.
"""

import time
from collections.abc import Callable

import numpy as np

from tutorial_dl.replica import DenseReplica
from tutorial_dl.replica.base import lay_out
from tutorial_dl.replica.vectors import Vectors
from tutorial_dl.strategies import Downpour, Synchronous

Seconds = Callable[[], float]


def always(seconds: float) -> Seconds:
    """The same time, whenever it is asked for."""
    return lambda: seconds


def at_random(mean: float, seed: int | list[int]) -> Seconds:
    """Exponentially distributed times with this mean."""
    dice = np.random.default_rng(seed)
    return lambda: dice.exponential(mean)


class Blank(Vectors):
    """n weights whose gradient is 0, and takes `seconds()`."""

    def __init__(self, n: int, seconds: Seconds):
        super().__init__(lay_out([("weights", (n,))]), np.float32)
        self.seconds = seconds

    def compute_gradient(self, batch):
        time.sleep(self.seconds())
        return 0.0, len(batch[0])

    def evaluate(self, batches):
        return {"loss": 0.0, "samples": sum(len(x) for x, _ in batches)}


class Marks(Blank):
    """One weight per sample, 0 at first; with a learning rate of 1, 1 once the sample is used.

    So weights show which updates they contain. `log` has, per gradient, when it was ready and how
    many samples its weights contained.
    """

    def __init__(self, samples: int, seconds: Seconds):
        super().__init__(samples, seconds)
        self.log: list[tuple[float, float]] = []

    def compute_gradient(self, batch):
        names, seen = batch[0].astype(int).ravel(), self.parameters.sum()
        done = super().compute_gradient(batch)
        self.gradient[:] = 0
        self.gradient[names] = -1 / max(1, len(names))  # the mean over the batch
        self.log.append((time.perf_counter(), seen))
        return done


class Device(DenseReplica):
    """A dense network of these sizes on a device that takes `seconds()` per gradient."""

    def __init__(self, sizes: tuple[int, ...], seconds: Seconds):
        super().__init__(sizes)
        self.seconds = seconds

    def compute_gradient(self, batch, **options):
        end = time.perf_counter() + self.seconds()
        done = super().compute_gradient(batch, **options)
        time.sleep(max(0.0, end - time.perf_counter()))
        return done


class Link(Downpour):
    """Downpour with a master that takes `seconds()` more for each exchange, and for each relay.

    `log` has, on a worker, when it pushed each gradient and when it had the answer.
    """

    def __init__(self, seconds: Seconds | None = None, **options):
        super().__init__(**options)
        self.seconds, self.log = seconds, []

    def step(self, x, g, server, due):
        pushed = time.perf_counter()
        super().step(x, g, server, due)
        self.log.append((pushed, time.perf_counter()))

    def serve(self, center, sent, answer):
        self._wait()
        super().serve(center, sent, answer)

    def serve_relay(self, center, sent, answer):
        self._wait()
        super().serve_relay(center, sent, answer)

    def _wait(self) -> None:
        if self.seconds is not None:
            time.sleep(self.seconds())


class Ring(Synchronous):
    """Synchronous training whose step takes `seconds` more, for a ring's messages."""

    def __init__(self, team, seconds: float):
        super().__init__(team)
        self.seconds = seconds

    def step(self, batch):
        done = super().step(batch)
        time.sleep(self.seconds)
        return done
