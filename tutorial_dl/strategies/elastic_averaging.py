"""Elastic averaging SGD (EASGD, EAMSGD): workers with own weights, tied by springs to a center.

Every worker has weights x of its own, and steps as if it were alone. Now and then (the option
`every` says after how many steps), a spring pulls its weights and the center c towards each other:

    worker i:  g    =  gradient at x
               d    =  alpha (x - c)             how far the spring pulls
               x    <- x - d;   c <- c + d       (by the master)
               x    <- x - eta g

alpha = moving_rate / workers; with a moving rate of at most 1, all workers together move the center
no further than to their mean. With momentum delta (EAMSGD) the last line is

               v    <- delta v - eta g(x + delta v);   x <- x + v

Zhang, Choromanska, LeCun, Deep learning with elastic averaging SGD, arXiv 1412.6651: algorithms 1
and 2; equations 2 and 3 for the synchronous form, where all workers exchange with the same center.
"""

import numpy as np

from numba_kernels.optimizers import SGD

from ..config import OPTIONS
from . import kernels as vectors
from .rule import Rule


class ElasticAveraging(Rule):
    """EASGD: each worker has its own weights; the master's center is the result of the training.

    Args:
        moving_rate: beta = workers * alpha, above 0 and below 2, in the synchronous form below
            2 workers / (workers + 1); the paper uses 0.9
        momentum: delta of EAMSGD, from 0 to below 1; above 0 it needs optimizer "sgd" without
            momentum of its own. With 0, workers step with any optimizer
        every: steps per exchange, at least 1 (the paper's tau)
        synchronous: all workers exchange at the same time; then every run gives the same result
        upward, team, layout: see Rule

    Example:
        >>> from numba_kernels.optimizers import SGD
        >>> from tutorial_dl.strategies import ElasticAveraging, Scripted
        >>> run = Scripted(ElasticAveraging(), lambda x: x, [0.0], workers=2, optimizer=SGD(0.1))
        >>> run.x[0][:], run.x[1][:] = 1, 2
        >>> run.turns([0, 1])[:, 0].round(4).tolist()  # the center; alpha = 0.9 / 2
        [0.0, 0.45, 1.1475]
    """

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
        OPTIONS["moving_rate"].check_range(moving_rate)
        OPTIONS["momentum"].check_range(momentum)
        self.moving_rate, self.momentum = moving_rate, momentum

    @property
    def default_optimizer(self) -> str:
        return "sgd" if self.momentum else "adam"

    def check_optimizer(self, optimizer) -> None:
        super().check_optimizer(optimizer)
        if self.momentum and not (isinstance(optimizer, SGD) and optimizer.momentum == 0):
            raise ValueError(
                "elastic averaging with momentum (EAMSGD) needs plain sgd, "
                f"got {optimizer.in_words}"
            )

    def check_layout(self, layout) -> None:
        """In the synchronous form, an exchange multiplies the workers' mean less the center by
        1 - alpha - beta, which must not be below -1: beta < 2 W / (W + 1) for W workers.
        """
        stars = [layout.workers, *([layout.masters] if layout.masters > 1 else [])]
        for leaves in stars:
            most = 2 * leaves / (leaves + 1)
            if self.synchronous and self.moving_rate >= most:
                raise ValueError(
                    f"moving_rate {self.moving_rate:g}: synchronous elastic averaging with "
                    f"{leaves} workers under a master needs less than {most:.4g}, or weights grow "
                    "without bound"
                )

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
        if self.momentum and not self._ahead:  # (no step follows an empty batch)
            vectors.add(x, self.momentum, self.v)
            self._ahead = True

    def step(self, x, g, server, due) -> None:
        if self.momentum:
            vectors.add(x, -self.momentum, self.v)  # undo look_ahead: the spring pulls at x itself
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

    # A sub-master exchanges with the master above it as a worker does with its master

    def begin_relay(self, center) -> None:
        pass

    def relay(self, center, server) -> None:
        server.push(center, into=center)

    def serve_relay(self, center, sent, answer) -> None:
        self.serve(center, sent, answer)

    def serve_all_relays(self, center, sent, answers, weights) -> None:
        self.serve_all(center, sent, answers, weights)
