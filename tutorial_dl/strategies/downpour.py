"""Downpour SGD (DistBelief): workers push gradients, a master updates as soon as one arrives.

    worker:  w    <- the master's weights
             u    =  sum of the gradients of `every` steps, between which w <- w - eta g
    master:  w    <- optimizer(w, u)                    at once, whichever worker sent u
    worker:  w    <- the master's weights               and so on

No worker waits for another. The price: when u arrives, the master's weights are no longer those at
which its gradients were computed; tau updates have changed them since. tau is the *staleness* of u.
Dean et al., Large scale distributed deep networks, NIPS 2012, section 4.1.

    master   w0 --- w1 ------ w2 ---- w3 ------      w1 = w0 - eta g_A(w0)
    A        g(w0)  '-> g(w1) '        '-> ...       w2 = w1 - eta g_B(w0)      staleness 1
    B        g(w0) ---'-> g(w2) -------'             w3 = w2 - eta g_A(w1)      staleness 1

Two remedies where tau is large. Ringmaster (Maranjyan, Tyurin, Richtarik, arXiv 2501.16168,
algorithm 4) discards what is too stale, so that a slow worker can't undo what fast ones learn.
Delay compensation (DC-ASGD; Zheng et al., arXiv 1609.08326, algorithm 2) corrects a gradient, which
was computed at old weights, to first order:

    discard R:         use u only if tau < R; either way, the worker goes on from the new weights
    compensate lambda: u <- u + lambda u^2 (w - w_old)      u^2 stands for the Hessian's diagonal

(In the paper a worker sends u = w_pulled - w_local, which for one step is eta g. Here it sends the
sum of its gradients, which the master's optimizer, whichever it is, uses like a gradient. For SGD
the two are the same.)
"""

from dataclasses import replace

import numpy as np

from numba_kernels.optimizers.clipping import clip_by_norm
from numba_kernels.optimizers.serve import serve

from ..config import OPTIONS
from . import kernels as vectors
from .rule import Rule

SEE_VECTORS = ("begin_worker", "look_ahead", "step", "after_break", "serve")


class Downpour(Rule):
    """Downpour SGD: workers push gradients to a master and get its weights back.

    Args:
        every: steps per exchange, at least 1; between exchanges a worker does plain gradient
            descent on its own weights, at the same learning rate
        synchronous: the master waits for all workers and updates with their mean; with every=1 this
            is synchronous data parallelism. It excludes the options below
        staleness_aware: divide the learning rate of each update by 1 + its staleness (Zhang et al.,
            arXiv 1511.05950)
        lower_momentum: reduce the optimizer's momentum by the implicit momentum of asynchrony,
            1 - 1/workers, to no less than 0 (Mitliagkas et al., arXiv 1605.09774; Omnivore, arXiv
            1606.04487)
        discard: R, at least 1: discard gradients of staleness R or more (Ringmaster)
        delay_compensation: lambda, above 0 (DC-ASGD); it needs every=1. The master keeps a copy of
            the weights for each worker
        upward, team, layout: see Rule

    Example:
        >>> from numba_kernels.optimizers import SGD
        >>> from tutorial_dl.strategies import Downpour, Scripted
        >>> run = Scripted(Downpour(), lambda x: x, [1.0], workers=2, optimizer=SGD(0.1))
        >>> run.turns([0, 1, 0, 1])[:, 0].round(2).tolist()
        [1.0, 0.9, 0.8, 0.71, 0.63]
        >>> run.staleness
        [0, 1, 1, 1]
    """

    receives = "parameters"

    def __init__(
        self,
        every: int = 1,
        synchronous: bool = False,
        staleness_aware: bool = False,
        lower_momentum: bool = False,
        discard: int | None = None,
        delay_compensation: float | None = None,
        **where,
    ):
        super().__init__(every, synchronous, **where)
        stale = {
            "staleness_aware": staleness_aware, "lower_momentum": lower_momentum,
            "discard": discard, "delay_compensation": delay_compensation,
        }  # fmt: skip
        given = [name for name, value in stale.items() if value]
        if synchronous and given:
            raise ValueError(f"{given[0]} excludes synchronous, where nothing is stale")
        for name in ("discard", "delay_compensation"):
            if stale[name] is not None:
                OPTIONS[name].check_range(stale[name])
        if delay_compensation and every > 1:
            raise ValueError(f"delay_compensation needs every=1, got {every}")
        self.discard, self.delay_compensation = discard, delay_compensation
        self.staleness_aware, self.lower_momentum = staleness_aware, lower_momentum

    def check_optimizer(self, optimizer) -> None:
        super().check_optimizer(optimizer)
        if self.lower_momentum and not getattr(optimizer, "momentum", 0):
            raise ValueError(
                "lower_momentum needs an optimizer with momentum (sgd or rmsprop), "
                f"but {optimizer.name} has none"
            )

    def use(self, optimizer) -> None:
        super().use(optimizer)
        self._slots = optimizer.slots  # counted before `begin_master` lowers the momentum

    @property
    def sends(self) -> str | None:
        return "gradient" if self.every == 1 else None

    @property
    def swaps(self) -> bool:
        # Overridden methods may keep a reference to the weights, or fill `answer` before they read
        # `sent`.
        own = all(getattr(type(self), name) is getattr(Downpour, name) for name in SEE_VECTORS)
        return own and self.every == 1 and not self.synchronous

    # A worker

    def begin_worker(self, x, segments=None) -> None:
        self.sum = np.zeros_like(x) if self.every > 1 else None

    def step(self, x, g, server, due) -> None:
        if self.every == 1:
            server.push(g, into=x)
            return
        self.sum += g
        if due:
            server.push(self.sum, into=x)
            self.sum[:] = 0
        else:
            x -= x.dtype.type(self.rate) * g

    def after_break(self, x, server) -> None:
        server.pull(into=x)

    # The master

    def begin_master(self, center, segments=None) -> None:
        if self.lower_momentum:
            lower = max(0.0, self.optimizer.momentum - (1 - 1 / self.workers))
            self.optimizer = replace(self.optimizer, momentum=lower)
        self.state = self.optimizer.init(center.size, center.dtype, segments)
        if self.delay_compensation:
            self._first = center.copy()  # what workers begin with
            self._given: dict[int, np.ndarray] = {}  # the weights that each has got last

    def handed(self, worker, weights) -> None:
        if self.delay_compensation:
            self._given[worker] = weights.copy()

    def serve(self, center, sent, answer) -> bool:
        if self.discard is not None and self.staleness >= self.discard:
            if answer is not None:
                answer[:] = center
            return False
        if self.delay_compensation:
            old = self._given.get(self.worker, self._first)
            vectors.compensate(sent, self.delay_compensation, center, old)
        optimizer = self.optimizer
        if self.staleness_aware:
            optimizer = optimizer.at_rate(self.rate / (1 + self.staleness))
        serve(optimizer, center, sent, self.state, answer)
        return True

    @property
    def kept(self) -> int:
        return 0 if self.synchronous else 1 + self._slots

    @property
    def clips(self) -> bool:
        return self.synchronous  # the gradient of the whole batch, not each worker's

    def serve_all(self, center, sent, answers, weights) -> None:
        mean = np.zeros_like(center)
        for vector, weight in zip(sent, weights, strict=True):
            if weight:  # a worker without samples has weight 0: ignore its vector
                mean += center.dtype.type(weight) * vector
        if any(weights):
            if self.clip_norm is not None:
                clip_by_norm(mean, self.clip_norm)
            self.optimizer.update(center, mean, self.state)
        for answer in answers:
            answer[:] = center

    def refresh(self, center, answer) -> None:
        answer[:] = center
