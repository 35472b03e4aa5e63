"""Elastic averaging: workers explore by themselves, tied to a common center by springs.

Every worker has weights x of its own, and steps as if it was alone. Every `every` steps its weights
and the center's pull at each other:

    worker i:  g    =  gradient at x
               d    =  alpha (x - c)             how far the spring pulls
               x    <- x - d;   c <- c + d       (by the master)
               x    <- x - eta g

alpha = moving_rate / workers: small enough, and all workers together move the center no further
than to their mean. With momentum delta (EAMSGD) the last line is

               v    <- delta v - eta g(x + delta v);   x <- x + v

Zhang, Choromanska, LeCun, Deep learning with elastic averaging SGD, arXiv 1412.6651: algorithms 1
and 2; equations 2 and 3 for the synchronous form, where the center sees all workers at one time.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.optimizers import SGD

from . import kernels as vectors
from .rule import Rule


class ElasticAveraging(Rule):
    """Own weights on every worker, drawn towards a center, whose they are in the end.

    Args:
        moving_rate: beta = workers * alpha, above 0 and below 2; the paper's is 0.9
        momentum: delta of EAMSGD, with optimizer "sgd"; 0: workers step by any optimizer
        every: steps from one exchange to the next (the paper's tau)
        synchronous: all workers exchange at once; the same result on every run
        upward, team, layout: see Rule
    """

    default_optimizer = "sgd"
    sends = receives = "parameters"

    def __init__(
        self,
        moving_rate: float = 0.9,
        momentum: float = 0.0,
        every: int = 1,
        synchronous: bool = False,
        **where,
    ):
        super().__init__(every, synchronous, **where)
        if not 0 < moving_rate < 2:
            raise ValueError(f"moving rate {moving_rate}; above 0 and below 2 is right")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum {momentum}; from 0 to below 1 is right")
        self.moving_rate, self.momentum = moving_rate, momentum

    def use(self, optimizer) -> None:
        if self.momentum and not (isinstance(optimizer, SGD) and optimizer.momentum == 0):
            raise ValueError(
                f"momentum of elastic averaging with {optimizer.in_words}; "
                "it needs plain sgd beneath"
            )
        super().use(optimizer)

    @property
    def alpha(self) -> float:
        return self.moving_rate / self.workers

    # A worker

    def begin_worker(self, x, segments=None) -> None:
        if self.momentum:
            self.v, self._ahead = np.zeros_like(x), False
        else:
            self.state = self.optimizer.init(x.size, x.dtype, segments)

    def look_ahead(self, x) -> None:
        if self.momentum and not self._ahead:  # (after a batch without samples comes no step)
            vectors.add(x, self.momentum, self.v)
            self._ahead = True

    def step(self, x, g, server, due) -> None:
        if self.momentum:
            vectors.add(x, -self.momentum, self.v)  # back from the look ahead
            self._ahead = False
        if due:
            server.push(x, into=x)
        if self.momentum:
            vectors.momentum_step(x, g, self.v, self.rate, self.momentum)
        else:
            self.optimizer.update(x, g, self.state)

    # The master

    def serve(self, center, sent, answer) -> None:
        vectors.spring(center, sent, answer, self.alpha)

    def serve_all(self, center, sent, answers, weights) -> None:
        before = center.copy()
        for x, answer in zip(sent, answers, strict=True):
            moved = before.copy()
            vectors.spring(moved, x, answer, self.alpha)
            center += moved - before

    # A sub-master is to the master above what a worker is to it

    def begin_relay(self, center) -> None:
        pass

    def relay(self, center, server) -> None:
        server.push(center, into=center)

    def serve_relay(self, center, sent, answer) -> None:
        self.serve(center, sent, answer)

    def serve_all_relays(self, center, sent, answers, weights) -> None:
        self.serve_all(center, sent, answers, weights)

    def save(self) -> tuple[dict, dict]:
        return {}, {}  # a master has nothing but the center
