"""`Trainer`: trains any model by any strategy."""

from __future__ import annotations

import re
import signal
import zlib
from contextlib import nullcontext

import numpy as np
from tqdm import tqdm

from numba_kernels import optimizers
from numba_kernels.optimizers.clipping import check_clip_norm
from numba_kernels.spans import span
from numba_kernels.team.team import Team, abort_all

from .. import replica as replicas
from .. import strategies
from ..checkpoint.contents import Saving, agree_on_callbacks
from ..checkpoint.master import alone
from ..checkpoint.master import read as read_of_master
from ..data import Batches, Dataset, dataset_of
from ..layout.layout import layout_of
from ..replica import random_state
from ..replica.accumulating import Accumulating
from ..replica.consistency import check_same_settings
from ..runtime import in_step
from ..runtime.errors import Terminated, TrainingError
from ..runtime.evaluation import evaluate, predict
from ..runtime.history import History
from ..runtime.master import loop as of_masters
from ..runtime.master.topology import computing_team
from ..runtime.termination import Pulse, heeding
from ..strategies.loss_scale import loss_scale_of
from ..strategies.rule import Rule
from .callbacks import callbacks_of
from .schedules import schedule_of

__all__ = ["History", "Trainer", "TrainingError"]


class Trainer:
    """Trains a model on a dataset by a strategy, on all ranks of the strategy's team.

    Args:
        model: A Replica, or a compiled keras.Model (its own optimizer is not used).
        dataset: Training and validation data, the same on every rank: a Dataset, or arrays
            ((x, y), (x_val, y_val)).
        strategy: Name of a strategy, or a strategy object (which has its team).
        optimizer: Name of an optimizer, or an optimizer object; None: the strategy's default, which
            is "adam" for most.
        batch_size: Samples per update, over all ranks together (the global batch size B): more
            ranks do the same updates faster and end with the same weights. With an asynchronous
            strategy: samples per gradient of a worker.
        seed: Seed of the order of samples.
        team: Team for a strategy given by name; None: all ranks.
        progress: Whether rank 0 shows a progress bar.
        validation_batch_size: Samples that a rank evaluates at once; changes no result.
        timeline: A `timeline.Timeline` to record what every rank does, or None.
        learning_rate: A number, or a function of the step (`schedules`); None: the optimizer's.
        correct_momentum: Correct the momentum when the rate changes, see `Optimizer.at_rate`.
        accumulate: Number of micro-batches in which each rank computes its share of a batch, one
            after the other: takes less memory, and changes nothing else
            (training/accumulating.py).
        clip_norm: Largest norm of the gradient of the whole batch; longer gradients are scaled down
            to it. None: no clipping.
        callbacks: See `callbacks`; called in this order, on all ranks.
        checkpoint: Folder for checkpoints that all ranks see; None: no checkpoints. With a folder,
            SIGTERM (a batch system's warning) writes a checkpoint and raises Terminated.
        checkpoint_every: Steps between two checkpoints; None: at the end of each epoch.
        keep_checkpoints: Number of newest checkpoints to keep.
        loss_scale: For models that compute in half precision (training/loss_scale.py): "auto" is
            "dynamic" for float16 and None otherwise; a number is a fixed scale.
        check_every: Steps between two checks that all ranks have the same weights, besides the
            check after each epoch. (With a master, workers' weights differ.)

    Raises:
        ValueError, TypeError: If an argument can't be used, before anything is trained.
    """

    def __init__(
        self,
        model,
        dataset: Dataset,
        strategy="synchronous",
        optimizer=None,
        batch_size: int = 32,
        seed: int = 0,
        team: Team | None = None,
        progress: bool = True,
        validation_batch_size: int = 512,
        timeline=None,
        learning_rate=None,
        correct_momentum: bool = True,
        accumulate: int = 1,
        clip_norm: float | None = None,
        callbacks=(),
        checkpoint=None,
        checkpoint_every: int | None = None,
        keep_checkpoints: int = 3,
        check_every: int = 200,
        loss_scale="auto",
    ):
        self.strategy = strategies.get(strategy, team) if isinstance(strategy, str) else strategy
        self.team = self.strategy.team
        self.replica = replicas.of(model)
        if accumulate != 1:
            self.replica = Accumulating(self.replica, accumulate)
        self.strategy.loss_scale = loss_scale_of(loss_scale, self.replica)
        self.dataset = dataset = dataset_of(dataset)
        self.schedule = None if learning_rate is None else schedule_of(learning_rate)
        default = self.strategy.default_optimizer
        self.optimizer = optimizers.get(default if optimizer is None else optimizer)
        if self.schedule is not None:
            self.optimizer = self.optimizer.at_rate(self.schedule(0))
        if clip_norm is not None:
            check_clip_norm(clip_norm)
        if check_every < 1:
            raise ValueError(f"check_every must be at least 1 step, got {check_every}")
        self.has_master = isinstance(self.strategy, Rule)
        rank, ranks = self.team.rank, self.team.size
        if self.has_master:  # the master hands out tasks
            self.strategy.use(self.optimizer)
            self.strategy.clip_norm = clip_norm
            self.by = str(self.strategy)  # with its options as they were given
            self.layout = layout_of(self.strategy, self.team)
            rank, ranks = 0, 1
        self._at_once = 1 if self.has_master else self.strategy.updates_a_step
        self.batches = Batches(
            dataset.train, batch_size * self._at_once, seed=seed, rank=rank, ranks=ranks
        )
        self.validation_batch_size = validation_batch_size
        self.correct_momentum, self.clip_norm = correct_momentum, clip_norm
        self.accumulate, self.check_every = accumulate, check_every
        self.progress = progress and self.team.rank == 0
        self.timeline = timeline
        self.callbacks = callbacks_of(callbacks)
        self.history = History()
        self.steps = 0  # updates so far
        self.stopped: str | None = None  # the reason, if training stopped before its last epoch
        self.round, self.sums = 0, np.zeros(3)  # in this epoch: rounds; loss, samples, seconds
        self._attached = False
        self._generation = 0  # the team's generation when its ranks last agreed
        self.run = self.resumed = self.ended_with = self.mates = None  # for runs with a master
        self.gone: list[int] = []  # ranks that were lost
        self.begun = False
        self.saving = None
        if checkpoint is not None:
            self.saving = Saving(self, checkpoint, checkpoint_every, keep_checkpoints)
            if self.has_master:
                self.saving.of_master = alone(self.saving)

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
        batch_size = self.batches.batch_size // self._at_once
        return self.strategy.updates_an_epoch(len(self.dataset.train), batch_size)

    def fit(self, epochs: int) -> History:
        """Train for `epochs` more epochs.

        An epoch that was resumed in the middle, from a checkpoint, counts as the first. After a
        failure, once the team is usable again, training continues from rank 0's weights at the
        beginning of the interrupted epoch. If this rank fails, for any reason, the other ranks are
        notified.

        Returns:
            The history of all epochs so far.

        Raises:
            TrainingError: If the loss is not finite.
            PeerError: If another rank failed.
            Terminated: After SIGTERM.
        """
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, got {epochs}")
        if self.saving is not None:
            self.saving.check_folder()  # fails on all ranks before anything can be overwritten
        self.stopped = None
        try:
            self._agree()
            seen = nullcontext()
            if self.timeline is not None:
                seen = self.timeline.over(self.team, lambda: not self.history.lost)
            # SIGTERM ends a process at once; only with checkpoints is it caught to write one first.
            heeded = nullcontext([]) if self.saving is None else heeding(signal.SIGTERM)
            with seen, heeded as signals, self._bar(epochs) as bar:
                for callback in self.callbacks:
                    callback.on_fit_begin(self)
                train = of_masters.train if self.has_master else in_step.train
                train(self, epochs, bar, signals)
        except Terminated:
            raise  # all ranks raise it
        except BaseException as error:
            abort_all(error)
            raise
        finally:
            self.batches.close()
        return self.history

    def fit_to(self, epochs: int) -> History:
        """Train until there are `epochs` in all, including those of a resumed run.

        Does nothing if there are already, or if the run was stopped before (`stopped`).
        """
        left = epochs - len(self.history.epochs)
        if left > 0 and self.stopped is None:
            return self.fit(left)
        self._agree()
        for callback in self.callbacks:
            callback.on_fit_end(self)
        return self.history

    def resume(self) -> bool:
        """Resume from the newest complete checkpoint; False if there is none. Collective.

        On equally many ranks, the run ends with the same bits as an uninterrupted one; on another
        number of ranks it sees the same samples in the same order.

        Raises:
            CheckpointError: If the checkpoint is from another model or other settings.
            ValueError: Without `checkpoint`.
        """
        if self.saving is None:
            raise ValueError("resume() needs Trainer(checkpoint=folder)")
        try:
            self._agree()
            return read_of_master(self) if self.has_master else self.saving.read()
        except BaseException as error:
            abort_all(error)
            raise

    def stop(self, why: str) -> None:
        """For callbacks: make this epoch the last one. It is enough if one rank calls it."""
        self.stopped = why

    def _agree(self) -> None:
        """Before the first step, and after a failure: make all ranks begin with the same state."""
        self.team.ready()
        if self._attached and self._generation == self.team.generation:
            return
        # A failure may have come when some ranks had attached and others had not.
        attached = self.team.allreduce(np.array([int(self._attached)]), "min")[0]
        if not attached:
            self.check_agreement()
            self._attach()
            random_state.spread(self.team, self.replica)
        elif self.has_master:
            of_masters.agree(self)
            self._attach()
        else:
            counts = np.array([-len(self.history.epochs), self.steps])
            epochs, self.steps = (int(c) for c in self.team.allreduce(counts, "max"))
            del self.history.epochs[-epochs:]
            self.strategy.resume()
            agree_on_callbacks(self.team, self.callbacks)
        self.round, self.sums = 0, np.zeros(3)
        self.pulse = Pulse(self.team)
        self._attached, self._generation = True, self.team.generation

    def _attach(self) -> None:
        """Attach every rank to the strategy, with rank 0's weights. Collective."""
        if self.has_master:
            self.team.broadcast(self.replica.parameters)
            if self.replica.state.size:
                self.replica.state = self.team.broadcast(self.replica.state.copy())
        self.mates = self.team
        if self.has_master and (self.replica.uses_team or self.layout.devices > 1):
            self.mates = computing_team(self)
        if self.replica.uses_team:
            self.replica.use_team(self.mates)
        if not self.has_master:
            self.strategy.attach(self.replica, self.optimizer, self.clip_norm)

    def place(self) -> dict:
        """The position of training, for a checkpoint."""
        sums = self.sums if self.has_master else self.strategy.total(self.sums) / self._at_once
        sums = dict(zip(("loss", "samples", "seconds"), sums.tolist(), strict=True))
        return {"steps": self.steps, "round": self.round, "sums": sums}

    def go_to(self, place: dict) -> None:
        """The reverse of `place`."""
        self.steps, self.round = place["steps"], place["round"]
        self.sums = np.array([place["sums"][name] for name in ("loss", "samples", "seconds")])

    def evaluate(self, data=None) -> dict[str, float]:
        """Metrics over the validation data (or `data`), each rank evaluating its share."""
        data = self.dataset.validation if data is None else data
        self._check_all_are_here("evaluate()")
        try:
            self._agree()
            with span("validation"):
                return evaluate(self.team, self.replica, data, self.validation_batch_size)
        except BaseException as error:
            abort_all(error)
            raise

    def predict(self, inputs) -> np.ndarray:
        """The model's outputs for `inputs`, shape (samples, ...), in order, on every rank.

        Each rank computes its share. `inputs` are arrays, or data such as `dataset.validation`, in
        memory or not. For several outputs it returns a tuple or dict, as the model does.
        """
        self._check_all_are_here("predict()")
        try:
            self._agree()
            return predict(self.team, self.replica, inputs, self.validation_batch_size)
        except BaseException as error:
            abort_all(error)
            raise

    def _check_all_are_here(self, what: str) -> None:
        if self.run is not None:
            raise RuntimeError(
                f"{what} needs all ranks, but callbacks of a run with a master run on one rank; "
                "use trainer.replica.evaluate(batches) or .predict(x) there"
            )

    def settings(self) -> dict[str, float]:
        """The settings that must be equal on all ranks, and in a resumed run."""
        return {
            "parameters": self.replica.parameters.size,
            "training samples": len(self.dataset.train),
            "validation samples": len(self.dataset.validation),
            "batch size": self.batches.batch_size // self._at_once,
            **({"ranks": self.team.size} if self._at_once > 1 else {}),
            "seed": self.batches.seed,
            "pieces a batch": self.accumulate,
            "clip norm": self.clip_norm or 0,
        }

    def check_agreement(self) -> None:
        """Raise ValueError on all ranks if they were given different data or settings."""
        mine = self.settings()
        saving = self.saving
        mine |= {"callbacks": len(self.callbacks), "steps between checks": self.check_every}
        # Different rates on ranks that update slices of one model would not show as drift.
        rates = [self.schedule(s) for s in (0, 1, 10, 100, 1000)] if self.schedule else []
        rule = f"{self.optimizer} {rates} {self.correct_momentum} {self.strategy.loss_scale}"
        rule += f" {self.strategy} {self.layout}" if self.has_master else ""
        mine["as checksum of optimizer, learning rates and loss scale"] = zlib.crc32(rule.encode())
        mine["steps between checkpoints"] = 0 if saving is None else saving.every or -1
        check_same_settings(self.team, mine)

    def _bar(self, epochs: int):
        name = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(self.strategy).__name__).lower()
        what = f"{name} on {self.team.size} rank"
        return tqdm(
            total=epochs * len(self.dataset.train),
            desc=what + "s" * (self.team.size > 1),
            unit=" samples",
            unit_scale=True,
            mininterval=0.5,
            disable=not self.progress,
        )
