"""Asynchronous DiLoCo: workers make many steps on their own, and no one waits for the slowest.

    worker:  x  <- inner(x, g(x))                       H times, by any optimizer
             u  =  w_pulled - x                         is sent to the master
    master:  S  <- S + u;   w <- w - eta u / N          at once, whichever worker sent u
             each N-th time also                        N: the number of workers
             m  <- beta m + S / N;   w <- w - eta beta m;   S <- 0
    worker:  w_pulled, x  <-  the master's w            and so on

This is delayed Nesterov: N updates together are one step of Nesterov's momentum along their mean,
which momentum at each update would overshoot. Liu et al., Asynchronous local-SGD training for
language modeling, arXiv 2401.09135, "Delayed Nesterov" with c = 0.

With a *quorum*, the master collects what comes in until so many workers have come, waits a moment
more for others (the grace window), and makes one step along the mean, weighted by samples:

             D  =  sum_i s_i u_i / sum_i s_i
             m  <- beta m + D;   w <- w - eta (D + beta m)

A worker that comes later counts in the next round; one that has died costs nobody time (Decoupled
DiLoCo, arXiv 2604.21428). If all workers come in time, it is DiLoCo (local_steps.py).
"""

import numpy as np

from ..config import OPTIONS
from . import kernels as vectors
from .rule import Rule


class DilocoAsync(Rule):
    """Asynchronous DiLoCo: delayed Nesterov, or a quorum of workers with a grace window.

    The optimizer is that of the workers, each with a state of its own.

    Args:
        inner_steps: H, at least 1: steps per exchange
        outer_rate: eta, above 0
        outer_momentum: beta, from 0 to below 1; stale updates need less than DiLoCo's 0.9
        quorum: workers that make a round, at least 1; None: no rounds, delayed Nesterov
        grace: seconds that a round waits for others once it has its quorum, at least 0
        upward, team, layout: see Rule

    Example:
        >>> from numba_kernels.optimizers import SGD
        >>> from tutorial_dl.strategies import DilocoAsync, Scripted
        >>> rule = DilocoAsync(inner_steps=1, outer_rate=1.0, outer_momentum=0.5)
        >>> run = Scripted(rule, lambda x: x, [1.0], workers=2, optimizer=SGD(0.1))
        >>> run.turns([0, 1])[:, 0].round(4).tolist()  # u = .1; -.1/2; -.1/2 and -.5 (.2/2)
        [1.0, 0.95, 0.85]
    """

    sends, receives = "gradient", "parameters"

    def __init__(
        self,
        inner_steps: int = 50,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.5,
        quorum: int | None = None,
        grace: float = 1.0,
        **where,
    ):
        OPTIONS["inner_steps"].check_range(inner_steps)
        super().__init__(inner_steps, **where)
        given = {"outer_rate": outer_rate, "outer_momentum": outer_momentum, "grace": grace}
        for name, value in (given | ({} if quorum is None else {"quorum": quorum})).items():
            OPTIONS[name].check_range(value)
        if self.synchronous:
            raise ValueError("diloco async has no synchronous form: use strategy 'local_steps'")
        self.outer_rate, self.outer_momentum = outer_rate, outer_momentum
        self.quorum, self.grace = quorum, grace

    def check_layout(self, layout) -> None:
        if self.quorum is not None and layout.masters > 1:
            raise ValueError(f"a quorum needs one master, got {layout.masters}")
        if self.quorum is not None and self.quorum > layout.workers:
            raise ValueError(f"quorum {self.quorum} of {layout.workers} workers never comes")

    inner_steps = property(lambda self: self.every)

    # A worker

    def begin_worker(self, x, segments=None) -> None:
        self.state, self.pulled = self.optimizer.init(x.size, x.dtype, segments), x.copy()

    def step(self, x, g, server, due) -> None:
        self.optimizer.update(x, g, self.state)
        if due:
            np.subtract(self.pulled, x, out=g)
            self.pulled[:] = server.push(g, into=x)

    # The master

    def begin_master(self, center, segments=None) -> None:
        self.momentum, self.sum, self._received = np.zeros_like(center), np.zeros_like(center), 0

    def serve(self, center, sent, answer) -> None:
        vectors.add(self.sum, 1, sent)
        vectors.add(center, -self.outer_rate / self.workers, sent)
        self._received += 1
        if self._received >= self.workers:
            self._move(center, self.sum, 1 / self._received)
            self.sum[:], self._received = 0, 0
        answer[:] = center

    def serve_all(self, center, sent, answers, weights) -> None:
        mean = np.zeros_like(center)
        for vector, weight in zip(sent, weights, strict=True):
            vectors.add(mean, weight, vector)
        if any(weights):
            vectors.add(center, -self.outer_rate, mean)
            self._move(center, mean, 1)
        for answer in answers:
            answer[:] = center

    def _move(self, center, vector, factor) -> None:
        self.momentum *= self.momentum.dtype.type(self.outer_momentum)
        vectors.add(self.momentum, factor, vector)
        vectors.add(center, -self.outer_rate * self.outer_momentum, self.momentum)

    # Checkpoints

    def save(self) -> tuple[dict, dict]:
        return {"received": self._received}, {"momentum": self.momentum, "sum": self.sum}

    def restore(self, values, vectors) -> None:
        self._received = values["received"]
        self.momentum[:], self.sum[:] = vectors["momentum"], vectors["sum"]
