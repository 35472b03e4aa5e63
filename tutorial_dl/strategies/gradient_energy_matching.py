"""Gradient energy matching (GEM): all workers together keep the pace of one momentum SGD process.

More workers make more updates per gradient time, which moves the weights faster and acts as an
implicit momentum. So each worker looks before it commits. m is the step that one process with
momentum mu would take; |theta - s| is how far the weights have moved since this worker last looked,
by the others' commits and by its own last one. The worker commits what is left of |m|:

    worker:  D     =  -eta g(x);      m <- mu m + D
             theta <- the master's weights
             pi    =  (kappa |m| - |theta - s|) / |D|,  cut to [0, 5]      for each weight
             commit pi D to the master
             s     <- theta;          x <- theta + pi D
    master:  theta <- theta + what was committed

A worker commits nothing (pi = 0) where the weights have moved far enough already. kappa > 1 asks
for a faster pace than that of momentum SGD, kappa < 1 for a slower one. Hermans, Louppe, Gradient
energy matching for distributed asynchronous gradient descent, arXiv 1805.08469, section 3.
"""

import numpy as np

from numba_kernels.optimizers import SGD

from ..config import OPTIONS
from . import kernels as vectors
from .rule import Rule

MOST = 5.0  # upper limit of pi


class GradientEnergyMatching(Rule):
    """GEM: workers scale their commits so that all together keep the pace of momentum SGD.

    It needs optimizer "sgd" without momentum, whose learning rate is eta. Every step is an
    exchange, and there is no synchronous form.

    Args:
        kappa: energy factor, above 0; near 1 matches the pace of momentum SGD
        momentum: mu of the process that is imitated, from 0 to below 1
        upward, team, layout: see Rule

    Example:
        >>> from numba_kernels.optimizers import SGD
        >>> from tutorial_dl.strategies import GradientEnergyMatching, Scripted
        >>> rule = GradientEnergyMatching(kappa=1.0, momentum=0.9)
        >>> run = Scripted(rule, lambda x: x, [1.0], workers=2, optimizer=SGD(0.1))
        >>> run.turns([0, 1, 0, 1])[:, 0].round(3).tolist()
        [1.0, 0.9, 0.9, 0.82, 0.72]
    """

    default_optimizer = SGD(0.1)  # measured: docs/asynchronous.md
    pulls_in_step = True

    def __init__(self, kappa: float = 1.0, momentum: float = 0.9, **where):
        if where.pop("synchronous", False) or where.pop("every", 1) != 1:
            raise ValueError(
                "gradient energy matching is asynchronous and exchanges at every step; "
                "leave out synchronous and every"
            )
        super().__init__(**where)
        OPTIONS["kappa"].check_range(kappa)
        OPTIONS["momentum"].check_range(momentum)
        self.kappa, self.momentum = kappa, momentum

    def check_optimizer(self, optimizer) -> None:
        if not isinstance(optimizer, SGD) or optimizer.momentum:
            raise ValueError(f"gradient energy matching needs plain sgd, got {optimizer.in_words}")

    # A worker

    def begin_worker(self, x, segments=None) -> None:
        self.m, self.s, self.commit = np.zeros_like(x), x.copy(), np.empty_like(x)

    def step(self, x, g, server, due) -> None:
        theta = server.pull()
        vectors.match_energy(
            x, g, theta, self.m, self.s, self.commit, self.rate, self.momentum, self.kappa, MOST
        )
        server.push(self.commit, answer=False)

    # The master

    def serve(self, center, sent, answer) -> None:
        center += sent
        if answer is not None:
            answer[:] = center
