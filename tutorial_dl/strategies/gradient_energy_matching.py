"""Gradient energy matching: all workers together move the weights as one with momentum would.

More workers mean more updates at once, which acts as momentum that nobody asked for. So each worker
looks before it commits. m is where a single process with momentum mu would go; |theta - s| is how
far the others have moved the weights since this worker saw them last. What is left to do of |m|, it
does:

    worker:  D     =  -eta g(x);      m <- mu m + D
             theta <- the master's weights
             pi    =  (kappa |m| - |theta - s|) / |D|,  cut to [0, 5]      for each weight
             commit pi D to the master
             s     <- theta;          x <- theta + pi D
    master:  theta <- theta + what was committed

A worker whose part the others have done already commits nothing (pi = 0). kappa > 1 wants more
speed than momentum gives, kappa < 1 less. Hermans, Louppe, Gradient energy matching for distributed
asynchronous gradient descent, arXiv 1805.08469, section 3.
"""

from __future__ import annotations

from math import inf

import numpy as np

from numba_kernels.optimizers import SGD

from . import kernels as vectors
from .rule import Rule

MOST = 5.0  # of pi


class GradientEnergyMatching(Rule):
    """Workers scale what they commit so that all together keep to the pace of momentum SGD.

    Args:
        kappa: how much of that pace is wanted, above 0
        momentum: mu of the imagined process
        upward, team, layout: see Rule

    Works with optimizer "sgd", whose learning rate is eta, and exchanges at every step.
    """

    default_optimizer = "sgd"
    pulls_in_step = True

    def __init__(self, kappa: float = 1.0, momentum: float = 0.9, **where):
        if where.pop("synchronous", False) or where.pop("every", 1) != 1:
            raise ValueError("gradient energy matching is asynchronous, with an exchange a step")
        super().__init__(**where)
        if not 0 < kappa < inf:
            raise ValueError(f"kappa {kappa}; a number above 0 is right")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum {momentum}; from 0 to below 1 is right")
        self.kappa, self.momentum = kappa, momentum

    def use(self, optimizer) -> None:
        if not isinstance(optimizer, SGD) or optimizer.momentum:
            raise ValueError(
                f"gradient energy matching with {optimizer.in_words}; it needs plain sgd"
            )
        super().use(optimizer)

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
