"""`Run`: the state of training that both loops share."""

from __future__ import annotations

import weakref
import zlib
from dataclasses import dataclass

import numpy as np

from numba_kernels.optimizers import Optimizer
from numba_kernels.spans import span
from numba_kernels.team.team import Team

from ..data import Batches, Dataset
from ..layout.layout import Layout
from ..replica import random_state
from ..replica.base import Replica
from ..replica.consistency import check_same_settings, check_same_weights
from ..strategies.base import Strategy
from .clock import Clock
from .errors import NotFinite
from .evaluation import evaluate
from .history import History


@dataclass
class Player:
    """A model in training, and how it is trained. (A GAN has two.)

    Args:
        replica: This rank's copy of the model.
        strategy: How ranks train it together.
        optimizer: Its optimizer, as given; `strategy.optimizer` has the present learning rate.
        team: The ranks that train it.
    """

    replica: Replica
    strategy: Strategy
    optimizer: Optimizer
    team: Team


class Run:
    """One training run as seen by one rank; the loops change it, checkpoints save and restore it.

    Args:
        players: The models in training; those after the first are attached, kept equal and given
            learning rates like the first, which alone makes steps, metrics and checkpoints today.
        dataset: Training and validation data, the same on every rank.
        batches: This rank's part of the batches.
        layout: The role of each rank.
        team: The ranks of this run; all of them, or a part (one group of a search).
        clock: What measures seconds.
        schedule: The learning rate by step, or None.
        callbacks: Called in this order, on all ranks.
        front: The object that callbacks know as `trainer`; None: the run itself.
        timeline, validation_batch_size, correct_momentum, accumulate, clip_norm, check_every: See
            `Trainer`.

    Attributes:
        history: One row per epoch.
        steps: Updates so far.
        round: Rounds of this epoch so far; in each, every rank computes a batch.
        sums: Of this epoch so far: loss, samples, seconds.
        stopped: The reason, if training stopped before its last epoch.
        lost_ranks: Ranks that were lost.
        saving: What writes and reads checkpoints (checkpoint/contents.py), or None.
    """

    def __init__(
        self,
        players: list[Player],
        dataset: Dataset,
        batches: Batches,
        layout: Layout,
        team: Team,
        clock: Clock | None = None,
        schedule=None,
        callbacks=(),
        front=None,
        timeline=None,
        validation_batch_size: int = 512,
        correct_momentum: bool = True,
        accumulate: int = 1,
        clip_norm: float | None = None,
        check_every: int = 200,
    ):
        if check_every < 1:
            raise ValueError(f"check_every must be at least 1 step, got {check_every}")
        self.players, self.dataset, self.batches = players, dataset, batches
        self.layout, self.team, self.clock = layout, team, clock or Clock()
        self.schedule, self.callbacks, self.timeline = schedule, list(callbacks), timeline
        self.validation_batch_size, self.check_every = validation_batch_size, check_every
        self.correct_momentum, self.clip_norm = correct_momentum, clip_norm
        self.accumulate = accumulate
        self._front = None if front is None else weakref.ref(front)
        self.history = History()
        self.steps = self.round = 0
        self.sums = np.zeros(3)
        self.stopped: str | None = None
        self.lost_ranks: list[int] = []
        self.saving = None
        self._attached = False
        self._generation = 0  # the team's generation when its ranks last agreed

    # The first player

    @property
    def player(self) -> Player:
        return self.players[0]

    @property
    def replica(self) -> Replica:
        return self.player.replica

    @property
    def strategy(self) -> Strategy:
        return self.player.strategy

    @property
    def optimizer(self) -> Optimizer:
        return self.player.optimizer

    # What all ranks have in common

    def agree(self, loop) -> None:
        """Before the first step, and after a failure: make all ranks begin with the same state."""
        self.team.ready()
        if self._attached and self._generation == self.team.generation:
            return
        # A failure may have come when some ranks had attached and others had not.
        attached = self.team.allreduce(np.array([int(self._attached)]), "min")[0]
        if attached:
            loop.agree()
        else:
            self.check_agreement(loop)
            loop.attach()
            for player in self.players:
                random_state.spread(player.team, player.replica)
        self.round, self.sums = 0, np.zeros(3)
        self._attached, self._generation = True, self.team.generation

    def settings(self) -> dict[str, float]:
        """The settings that must be equal on all ranks, and in a resumed run."""
        at_once = self.strategy.updates_a_step
        return {
            "parameters": self.replica.parameters.size,
            "training samples": len(self.dataset.train),
            "validation samples": len(self.dataset.validation),
            "batch size": self.batches.batch_size // at_once,
            **({"ranks": self.team.size} if at_once > 1 else {}),
            "seed": self.batches.seed,
            "pieces a batch": self.accumulate,
            "clip norm": self.clip_norm or 0,
        }

    def check_agreement(self, loop) -> None:
        """Raise ValueError on all ranks if they were given different data or settings."""
        mine = self.settings()
        mine |= {"callbacks": len(self.callbacks), "steps between checks": self.check_every}
        # Different rates on ranks that update slices of one model would not show as drift.
        rates = [self.schedule(s) for s in (0, 1, 10, 100, 1000)] if self.schedule else []
        rule = [self.optimizer, rates, self.correct_momentum, self.strategy.loss_scale]
        rule += [loop.identity(), repr(self.layout)]
        words = " ".join(map(str, rule))
        mine["as checksum of optimizer, learning rates and loss scale"] = zlib.crc32(words.encode())
        mine["steps between checkpoints"] = 0 if self.saving is None else self.saving.every or -1
        check_same_settings(self.team, mine)

    def check_same_weights(self) -> None:
        """Raise DriftError on all ranks if their weights differ. Collective."""
        for player in self.players:
            check_same_weights(player.team, player.replica)

    # The position of training

    @property
    def at_epoch_begin(self) -> bool:
        return self.round == 0

    @property
    def epoch_is_complete(self) -> bool:
        """Whether all updates of the epoch are done; its validation is not."""
        return self.round == len(self.batches)

    @property
    def steps_per_epoch(self) -> int:
        """Updates per epoch, of all ranks together."""
        batch_size = self.batches.batch_size // self.strategy.updates_a_step
        return self.strategy.updates_an_epoch(len(self.dataset.train), batch_size)

    def place(self) -> dict:
        """The position of training, for a checkpoint."""
        sums = self.strategy.total(self.sums) / self.strategy.updates_a_step
        sums = dict(zip(("loss", "samples", "seconds"), sums.tolist(), strict=True))
        return {"steps": self.steps, "round": self.round, "sums": sums}

    def go_to(self, place: dict) -> None:
        """The reverse of `place`."""
        self.steps, self.round = place["steps"], place["round"]
        self.sums = np.array([place["sums"][name] for name in ("loss", "samples", "seconds")])

    # Events of training

    def tell(self, event: str, *arguments) -> None:
        """Call the method `event` of all callbacks."""
        front = self if self._front is None else self._front()
        for callback in self.callbacks:
            getattr(callback, event)(front, *arguments)

    def set_rate(self, step: int, correct_momentum: bool = True) -> None:
        """Use the scheduled learning rate of `step` from now on, if there is a schedule."""
        if self.schedule is not None:
            for player in self.players:
                player.strategy.set_rate(
                    self.schedule(step), correct_momentum and self.correct_momentum
                )

    def end_epoch(
        self, bar, epoch: int, loss: float, metrics: dict, samples: float, seconds: float, **more
    ) -> dict:
        """Append the row of `epoch` to the history, show it, and return it.

        Raises:
            NotFinite: If the validation loss is not finite.
        """
        rate = self.strategy.optimizer.learning_rate
        if not np.isfinite(metrics["loss"]):
            what = f"the validation loss is {metrics['loss']}"
            raise NotFinite(what, f"after epoch {epoch + 1}", rate)
        row = (
            {"epoch": epoch + 1, "loss": float(loss)}
            | {f"val_{name}": value for name, value in metrics.items()}
            | {"samples_per_second": float(samples / seconds), "seconds": float(seconds)}
        )
        if self.schedule is not None:
            row["learning_rate"] = rate
        row |= more
        self.history.epochs.append(row)
        self.round, self.sums = 0, np.zeros(3)
        shown = {"loss": loss} | {f"val_{name}": value for name, value in metrics.items()}
        bar.set_postfix({n: f"{value:.4f}" for n, value in shown.items()}, refresh=False)
        return row

    def evaluate(self, data=None) -> dict[str, float]:
        """Metrics over the validation data (or `data`), each rank evaluating its share."""
        data = self.dataset.validation if data is None else data
        with span("validation"):
            return evaluate(self.team, self.replica, data, self.validation_batch_size)

    def stop(self, why: str) -> None:
        """Make this epoch the last one."""
        self.stopped = why
