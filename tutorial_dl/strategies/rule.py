"""Rule: what a worker and its master do with a model's weights, on flat vectors.

A rule is a class of two short methods, one for each side:

    class Average(Rule):                        # the master keeps a running mean of the workers
        def step(self, x, g, server, due):      # a worker: own weights x, gradient g at x
            x -= self.rate * g
            if due:
                server.push(x, into=x)
        def serve(self, center, sent, answer):  # the master
            center += 0.1 * (sent - center)
            answer[:] = center

Everything else is the same for every rule, and no business of theirs: messages, order of arrival,
batches, validation, checkpoints, ranks that fail (tutorial_dl.parameter_server). `scripted.py`
drives the very same objects in one process, in any order of events.

A rank has one object of its rule, and is either a worker or a master with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a notebook that only scripts a rule needs no MPI
    from numba_kernels.optimizers import Optimizer
    from numba_kernels.team.team import Team


class Rule:
    """Base class of asynchronous rules.

    Args:
        every: steps of a worker from one exchange to the next
        synchronous: the master waits for all workers, and serves them together (`serve_all`)
        upward: with sub-masters: exchanges with workers from one of their exchanges with the master
            above to the next; "auto" finds a number at which that takes little of their time
        team: the ranks that train, masters included; all if None
        layout: who is what (`Layout`); None: one master, the rest are workers

    What a rule may use:
        rate: the learning rate of this step
        workers: how many share this rank's master (of a master: its own)
        staleness: on the master, while it serves: updates since this worker had its weights
    """

    needs_master = True  # at least one rank trains nothing, and keeps the weights
    default_optimizer = "adam"
    pulls_in_step = False  # weights are pulled after the gradient was taken, and before the push
    # Where a replica's vectors lie that go to the master and come from it without a copy:
    sends: str | None = None  # "gradient", "parameters"
    receives: str | None = None  # "parameters"
    swaps = False  # a step ends with its push: weights may come where the gradient was (Star.ask)

    def __init__(
        self,
        every: int = 1,
        synchronous: bool = False,
        upward: int | str = "auto",
        team: Team | None = None,
        layout=None,
    ):
        if every < 1:
            raise ValueError(f"an exchange every {every} steps; 1 or more is right")
        if upward != "auto" and (isinstance(upward, str) or upward < 1):
            raise ValueError(f"upward every {upward!r} exchanges; 1 or more, or 'auto', is right")
        self.every, self.synchronous, self.upward = every, synchronous, upward
        self._team, self.layout = team, layout
        self.workers, self.staleness = 1, 0
        self.clip_norm: float | None = None
        self.loss_scale = None
        self.optimizer: Optimizer | None = None

    # Settings

    @property
    def team(self) -> Team:
        """The ranks that train; made when it is first asked for, which is collective."""
        if self._team is None:
            from numba_kernels.team.team import Team

            self._team = Team()
        return self._team

    @property
    def rate(self) -> float:
        return self.optimizer.learning_rate

    def use(self, optimizer: Optimizer) -> None:
        """Take this optimizer; ValueError if the rule can do nothing with it."""
        self.optimizer = optimizer

    def set_rate(self, rate: float, correct_momentum: bool = True) -> None:
        """Learn at `rate` from now on (see `Optimizer.at_rate`)."""
        if rate != self.optimizer.learning_rate:
            state = getattr(self, "state", None) if correct_momentum else None
            self.optimizer = self.optimizer.at_rate(rate, state)

    def updates_an_epoch(self, samples: int, batch_size: int) -> int:
        """How many batches an epoch of so many samples has: what schedules count."""
        from ..layout.layout import layout_of

        at_once = 1 if self.synchronous else layout_of(self, self.team).workers_each
        return -(-samples // (batch_size * at_once)) * at_once

    # On a worker

    def begin_worker(self, x: np.ndarray, segments=None) -> None:
        """Own weights `x` [n] are the master's now; make what else a worker keeps."""

    def look_ahead(self, x: np.ndarray) -> None:
        """Before a gradient is computed: go where it is to be taken."""

    def step(self, x: np.ndarray, g: np.ndarray, server, due: bool) -> None:
        """One step from weights `x` [n] with the gradient `g` [n] there, both to be changed.

        If `due`, with an exchange: `server.push(vector, into=x)`, where x becomes the answer;
        `server.push(vector, answer=False)`; or `server.pull(into=x)` for the master's weights.
        Without `into` a push or pull returns the answer, which the next one overwrites.
        """
        raise NotImplementedError

    @property
    def kept(self) -> int:
        """Vectors [n] of the master that `served.serve` works on, weights included; or 0."""
        return 0

    @property
    def clips(self) -> bool:
        """Whether a rule heeds `clip_norm` by itself; otherwise workers clip each gradient."""
        return False

    def after_break(self, x: np.ndarray, server) -> None:
        """This worker has validated for a while; its weights are what they were."""

    # On a master

    def begin_master(self, center: np.ndarray, segments=None) -> None:
        """Make what a master keeps beside its weights `center` [n]."""

    def serve(self, center: np.ndarray, sent: np.ndarray, answer: np.ndarray | None) -> None:
        """A worker sent a vector: change `center`, and fill `answer` (None if none is wanted)."""
        raise NotImplementedError

    def serve_all(self, center: np.ndarray, sent: list, answers: list, weights: list) -> None:
        """The synchronous form: vectors of all workers, in their order.

        `weights`: each one's share of the samples of this round; their sum is 1.
        """
        raise NotImplementedError

    # Between a sub-master and the master above it

    def begin_relay(self, center: np.ndarray) -> None:
        """On a sub-master, whose weights are the master's now."""
        self._base, self._moved = center.copy(), np.empty_like(center)

    def relay(self, center: np.ndarray, server) -> None:
        """A sub-master's exchange: what its group changed goes up, the master's weights come."""
        np.subtract(center, self._base, out=self._moved)
        server.push(self._moved, into=center)
        self._base[:] = center

    def refresh(self, center: np.ndarray, answer: np.ndarray) -> None:
        """After that, in the synchronous form: an answer to a worker that is not sent yet.

        To be filled again by rules whose answers are the master's weights.
        """

    def serve_relay(self, center: np.ndarray, sent: np.ndarray, answer: np.ndarray) -> None:
        """The other end of it, on the master."""
        center += sent
        answer[:] = center

    def serve_all_relays(self, center, sent: list, answers: list, weights: list) -> None:
        """Of all sub-masters together, each group's change counting by its samples."""
        for vector, weight in zip(sent, weights, strict=True):
            center += center.dtype.type(weight) * vector
        for answer in answers:
            answer[:] = center

    # Checkpoints, written by the master

    def save(self) -> tuple[dict, dict]:
        """(numbers, name -> array [..., n]): what a master keeps beside its weights."""
        state = getattr(self, "state", None)
        if state is None:
            return {}, {}
        return {"updates": state.step}, {"slots": state.slots}

    def restore(self, values: dict, vectors: dict) -> None:
        if "slots" in vectors:
            self.state.step = values["updates"]
            self.state.slots[:] = vectors["slots"]

    def __str__(self) -> str:
        """With its options; the same on all ranks, and in a run that is resumed."""
        options = {
            name: value
            for name, value in vars(self).items()
            if isinstance(value, int | float | str)
            and name not in ("workers", "staleness", "upward")
            if not name.startswith("_")
        }
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in options.items())})"
