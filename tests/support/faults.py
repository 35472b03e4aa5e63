"""Workers that fail at a chosen moment, and models that note which samples they have seen.

strike("gradient", 7, die)     the 7th gradient that this rank begins is its last act
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np

MOMENTS = ("data", "gradient", "before", "after", "waiting", "validating")


class Fault(Exception):
    """The exception that a worker raises on purpose."""


def fail() -> None:
    raise Fault("by purpose")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def strike(moment: str, turn: int, how) -> None:
    """Call `how()` when a worker in this process reaches `moment` for the turn-th time.

    data: it looks up samples; gradient: it computes; before: it sends a vector to the master;
    after: it has the answer; waiting: it waits for it (only for `die`); validating.
    """
    from numba_kernels.star.star import Star
    from tutorial_dl.runtime.master.tasks import TaskBatches
    from tutorial_dl.runtime.master.worker import Computing

    owner, name = {
        "data": (TaskBatches, "batch"),
        "gradient": (Computing, "_own_gradient"),
        "validating": (Computing, "_measured"),
    }.get(moment, (Star, "ask"))
    right, seen = getattr(owner, name), [0]

    def wrong(self, *arguments, **options):
        counts = name != "ask" or (options.get("vector", True) and not self.is_hub)
        seen[0] += counts
        now = counts and seen[0] == turn
        if now and moment == "waiting":
            threading.Timer(0.05, how).start()
        elif now and moment != "after":
            how()
        answer = right(self, *arguments, **options)
        if now and moment == "after":
            how()
        return answer

    setattr(owner, name, wrong)
    return lambda: setattr(owner, name, right)


class Around:
    """A replica with `own` attributes beside it; all others are the replica's."""

    def __init__(self, replica, **own):
        self.__dict__.update(_replica=replica, **own)

    def __getattr__(self, name):
        return getattr(self._replica, name)

    def __setattr__(self, name, value):
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self._replica, name, value)


class Noting(Around):
    """A replica that writes to a file the numbers (last feature) of the samples it trains on."""

    def __init__(self, replica, path: Path, delay=None):
        super().__init__(replica, _file=open(path, "ab", 0), _delay=delay)  # noqa: SIM115

    def swap(self):
        self._replica.swap()

    def compute_gradient(self, batch):
        x, y = batch
        if self._delay is not None:
            self._delay()
        found = self._replica.compute_gradient((x[:, :-1], y))
        self._file.write(x[:, -1].astype(np.int32).tobytes())  # one write, so never half
        return found

    def evaluate(self, batches):
        return self._replica.evaluate([(x[:, :-1], y) for x, y in batches])

    def predict(self, x):
        return self._replica.predict(x[:, :-1])


def numbered_digits():
    """(digits, digits whose training samples carry their number as the last feature)."""
    from tutorial_dl import data

    digits = data.digits()
    arrays = [part.take(slice(0, len(part))) for part in (digits.train, digits.validation)]
    flat = [(x.reshape(len(x), -1), y) for x, y in arrays]
    plain = data.Dataset("digits", *(data.Data.of(x, y) for x, y in flat), digits.classes)
    numbered = [
        data.Data.of(np.hstack([x, np.arange(len(x), dtype=x.dtype)[:, None]]), y) for x, y in flat
    ]
    return plain, data.Dataset("numbered digits", *numbered, digits.classes)


def noted(folder) -> np.ndarray:
    """How often each of the samples was used by any rank that writes below `folder`."""
    parts = [np.frombuffer(p.read_bytes(), np.int32) for p in Path(folder).glob("*.noted")]
    return np.bincount(np.concatenate(parts), minlength=1)


class Counting:
    """A model with one weight per sample; its gradient is 1/b for each sample of a batch of b.

    With batches of exactly b samples and SGD at learning rate b, the weights count (downwards)
    how often each sample's gradient has entered an update.
    """

    def __init__(self, samples: int, delay=None):
        from numba_kernels.shared import window
        from tutorial_dl.replica.base import lay_out

        self.parameters, self.gradient = (window.aligned(samples, np.float32) for _ in range(2))
        self.parameters[:], self.gradient[:] = 0, 0
        self.segments = lay_out([("counts", (samples,))])
        self.state = np.zeros(0, np.float32)
        self._delay = delay

    def compute_gradient(self, batch):
        if self._delay is not None:
            self._delay()
        which = np.asarray(batch[0]).ravel().astype(np.int64)
        self.gradient[:] = 0
        self.gradient[which] = 1 / max(1, len(which))
        return 0.5 if len(which) else 0.0, len(which)

    def evaluate(self, batches):
        return {"loss": 0.5, "samples": sum(len(x) for x, _ in batches)}

    def predict(self, x):
        return np.asarray(x)

    def place(self, parameters, gradient):
        parameters[:], gradient[:] = self.parameters, self.gradient
        self.parameters, self.gradient = parameters, gradient


def numbers(samples: int):
    """A data set whose samples are the numbers 0 ... samples - 1."""
    from tutorial_dl import data

    x = np.arange(samples, dtype=np.float32)[:, None]
    return data.Dataset("numbers", data.Data.of(x, x[:, 0]), data.Data.of(x[:20], x[:20, 0]), None)
