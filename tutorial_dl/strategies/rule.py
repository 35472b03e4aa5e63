"""Rule: what a worker and its master do with a model's weights, as flat vectors.

A rule is a class with two short methods, one for each side:

    class Average(Rule):                        # the master keeps a running mean of the workers
        def step(self, x, g, server, due):      # a worker: own weights x, gradient g at x
            x -= self.rate * g
            if due:
                server.push(x, into=x)
        def serve(self, center, sent, answer):  # the master
            center += 0.1 * (sent - center)
            answer[:] = center

Everything else is the same for every rule, and is done in tutorial_dl.runtime.master: messages,
order of arrival, batches, validation, checkpoints, ranks that fail. `scripted.py` drives the same
objects in one process, in any order of events.

Every rank has one object of the rule, and is either a worker or a master with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..config import OPTIONS
from ..layout.layout import layout_of
from .base import Strategy

if TYPE_CHECKING:  # a notebook that only scripts a rule needs no MPI
    from numba_kernels.optimizers import Optimizer
    from numba_kernels.team.collectives import Collectives


class Rule(Strategy):
    """Base class of asynchronous rules.

    Args:
        every: steps of a worker per exchange, at least 1
        synchronous: the master waits for all workers, and serves them together (`serve_all`)
        upward: worker exchanges per exchange of a sub-master with the top master; at least 1, or
            "auto": chosen so that exchanges with the top master take little of its time
        team: the ranks that train, masters included; all if None
        layout: each rank's role (`Layout`); if None, one master and all other ranks workers

    Attributes:
        rate: the learning rate of this step
        workers: the number of workers that share this rank's master; on a master, its own workers
        worker, staleness: on the master, while it serves: which worker it is, and the number of
            updates since that got its weights
    """

    quorum: int | None = None  # workers that make a round; None: all, or there are no rounds
    grace = 0.0  # seconds that a round waits for others once it has its quorum
    pulls_in_step = False  # a step pulls weights after the gradient is computed, before the push
    # The replica's vectors that are sent to the master, and received from it, without a copy:
    sends: str | None = None  # "gradient" or "parameters"
    receives: str | None = None  # "parameters"
    swaps = False  # a step ends with its push: weights may replace the gradient in place (Star.ask)

    def __init__(
        self,
        every: int = 1,
        synchronous: bool = False,
        upward: int | str = "auto",
        team: Collectives | None = None,
        layout=None,
    ):
        OPTIONS["every"].check_range(every)
        if upward != "auto" and (isinstance(upward, str) or upward < 1):
            raise ValueError(f"upward must be at least 1, or 'auto', got {upward!r}")
        self.every, self.synchronous, self.upward = every, synchronous, upward
        super().__init__(team)
        self.layout = layout
        self.workers, self.worker, self.staleness = 1, 0, 0
        self.clip_norm: float | None = None

    # Settings

    @property
    def rate(self) -> float:
        return self.optimizer.learning_rate

    @property
    def shares_batches(self) -> bool:
        return self.synchronous or layout_of(self, self.team).devices > 1

    def use(self, optimizer: Optimizer) -> None:
        """Take this optimizer. Raises ValueError if the rule cannot work with it."""
        self.check_optimizer(optimizer)
        self.optimizer = optimizer

    # On a worker

    def begin_worker(self, x: np.ndarray, segments=None) -> None:
        """Make the worker's state. Its own weights `x` [n] equal the master's at this point."""

    def look_ahead(self, x: np.ndarray) -> None:
        """Before each gradient: move `x` to the point where it is to be computed."""

    def step(self, x: np.ndarray, g: np.ndarray, server, due: bool) -> None:
        """One step of a worker.

        Args:
            x: the worker's weights, [n], changed in place
            g: the gradient at `x`, [n], may be changed
            server: the exchange with the master: `push(vector, into=x)` sends a vector and writes
                the answer into x; `push(vector, answer=False)` wants no answer; `pull(into=x)`
                gets the master's weights. Without `into`, a push or pull returns the answer, which
                the next one overwrites.
            due: whether this step is to exchange
        """
        raise NotImplementedError

    @property
    def kept(self) -> int:
        """The number of vectors [n], weights included, that optimizers/serve.py updates; or 0."""
        return 0

    @property
    def clips(self) -> bool:
        """Whether the rule applies `clip_norm` itself; if not, workers clip each gradient."""
        return False

    def after_break(self, x: np.ndarray, server) -> None:
        """Called after this worker has validated; its weights have not changed meanwhile."""

    def check_layout(self, layout) -> None:
        """Raise ValueError if the rule can't train with so many masters and workers."""

    # On a master

    def begin_master(self, center: np.ndarray, segments=None) -> None:
        """Make the master's state besides its weights `center` [n]."""

    def serve(self, center: np.ndarray, sent: np.ndarray, answer: np.ndarray | None) -> bool | None:
        """Use a worker's vector `sent` [n]: change `center`, fill `answer` (None: not wanted).

        Returns False if the vector was discarded, so that there was no update.
        """
        raise NotImplementedError(f"{self} has no `serve`: it needs synchronous=True")

    def handed(self, worker: int, weights: np.ndarray) -> None:
        """Called when a worker gets these weights [n], from which its next gradient will come."""

    def serve_all(self, center: np.ndarray, sent: list, answers: list, weights: list) -> None:
        """Use the vectors of all workers at once: the synchronous form.

        `sent` and `answers` have one vector [n] per worker, in the workers' order; `weights` are
        the workers' shares of the samples of this round, with sum 1.
        """
        raise NotImplementedError(f"{self} has no `serve_all`: leave synchronous out")

    # Between a sub-master and the master above it

    def begin_relay(self, center: np.ndarray) -> None:
        """Make a sub-master's state. Its weights `center` [n] equal the top master's here."""
        self._base, self._moved = center.copy(), np.empty_like(center)

    def relay(self, center: np.ndarray, server) -> None:
        """A sub-master's exchange: send what its group changed, get the top master's weights."""
        np.subtract(center, self._base, out=self._moved)
        server.push(self._moved, into=center)
        self._base[:] = center

    def refresh(self, center: np.ndarray, answer: np.ndarray) -> None:
        """After `relay`, in the synchronous form: update an answer to a worker, not sent yet."""

    def serve_relay(self, center: np.ndarray, sent: np.ndarray, answer: np.ndarray) -> None:
        """The top master's side of `relay`: use the change `sent`, fill `answer`; all [n]."""
        center += sent
        answer[:] = center

    def serve_all_relays(self, center, sent: list, answers: list, weights: list) -> None:
        """Use the changes of all sub-masters at once, each weighted by its group's samples."""
        for vector, weight in zip(sent, weights, strict=True):
            center += center.dtype.type(weight) * vector
        for answer in answers:
            answer[:] = center

    # Checkpoints, written by the master

    def save(self) -> tuple[dict, dict]:
        """The master's state besides its weights: (numbers, arrays [..., n] by name)."""
        state = self.state
        if state is None:
            return {}, {}
        return {"updates": state.step, "rate": self.rate}, {"slots": state.slots}

    def restore(self, values: dict, vectors: dict) -> None:
        if "slots" in vectors:
            self.state.step = values["updates"]
            self.state.slots[:] = vectors["slots"]
        if "rate" in values:  # that of the saved velocity; checkpoints once had none
            self.set_rate(values["rate"], correct_momentum=False)

    def __str__(self) -> str:
        """The rule and its options; equal on all ranks, and in a run that is resumed."""
        options = {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, int | float | str)
            and name not in ("workers", "worker", "staleness", "upward")
            if not name.startswith("_")
        }
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in options.items())})"
