"""`Run`: the state of training that both loops share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from numba_kernels.optimizers import Optimizer
from numba_kernels.spans import span
from numba_kernels.team.collectives import Clock
from numba_kernels.team.team import Team

from ..checkpoint.contents import numbered
from ..data import Batches, Dataset, Stream
from ..data.hdf5 import Hdf5Data
from ..layout.layout import Layout
from ..replica import random_state
from ..replica.base import Batch, Replica, compiled, trained_sums
from ..replica.consistency import check_same_weights
from ..strategies.base import Strategy
from .agreement import check_same, of_data, of_model
from .callback import Callback
from .errors import NotFinite
from .evaluation import evaluate, metrics_over, summed
from .handing_out import sizes
from .history import History

SUMS = ("loss", "samples", "seconds")


@dataclass
class Player:
    """A model in training, and how it is trained. A game, such as a GAN, has several.

    Args:
        replica: This rank's copy of the model.
        strategy: How ranks train it together.
        optimizer: Its optimizer, as given; `strategy.optimizer` has the present learning rate.
        team: The ranks that train it: all ranks of the run.
        schedule: Its learning rate by step, or None.
        name: What its columns in the history begin with, if the run has several players.

    Attributes:
        rate: The optimizer's learning rate before its schedule; None: not known.
    """

    replica: Replica
    strategy: Strategy
    optimizer: Optimizer
    team: Team
    schedule: Callable[[int], float] | None = None
    name: str = ""
    rate: float | None = field(default=None, init=False)

    def __post_init__(self):
        self.strategy.join(self.team)
        self.strategy.take(self.replica)

    def select(self, batch: Batch, run: Run) -> Batch:
        """The part of a batch that this player trains on, or is evaluated on: all of it.

        A game overrides this method. It is called on every rank with the rank's share of the batch,
        just before the player's step; players before this one have done theirs.
        """
        return batch


@dataclass(eq=False, repr=False)
class Run:
    """One training run as seen by one rank; the loops change it, checkpoints save and restore it.

    Args:
        players: The models in training. In each round they make their steps in this order;
            callbacks are told the first one's loss, and `replica` and `strategy` are its.
        batches: This rank's part of the batches.
        layout: The role of each rank.
        team: The ranks of this run; all of them, or a part (one group of a search).
        clock: The clock that the run measures time with; the team's, if None. Ranks are real
            processes, so time limits for them go by real time, whatever this clock says.
        at_once: Whether all gradients of a round are taken at the weights before it; otherwise
            each player sees the steps of those before it.

    The other arguments are those of `Trainer`; `Trainer.of(loop)` trains it.

    Attributes:
        front: A weak reference to what callbacks know as `trainer`: the Trainer, or else the run.
        history: One row per epoch.
        steps: Updates of each player so far.
        round: Rounds of this epoch so far; in each, every rank computes a batch.
        sums: Of this epoch so far, a row per player: loss, samples, seconds.
        stopped: The reason, if training stopped before its last epoch.
        saving: What writes and reads checkpoints (checkpoint/contents.py), or None.
        compiled: (player's name, "gradient" or "evaluation") -> "graph" or "xla", once that is
            chosen (compilation.py).
    """

    players: list[Player]
    dataset: Dataset
    batches: Batches
    layout: Layout
    team: Team
    clock: Clock | None = None
    callbacks: Sequence[Callback] = ()
    timeline: object = None
    validation_batch_size: int = 512
    correct_momentum: bool = True
    accumulate: int = 1
    clip_norm: float | None = None
    check_every: int = 200
    compile: str = "auto"
    at_once: bool = False

    def __post_init__(self):
        if self.check_every < 1:
            raise ValueError(f"check_every must be at least 1 step, got {self.check_every}")
        names = [player.name for player in self.players]
        if len(names) > 1 and not (all(names) and len(set(names)) == len(names)):
            raise ValueError(f"several players need different names, got {names}")
        for player in self.players:
            if not player.strategy.team is player.team is self.team:
                raise ValueError("a run, its players and their strategies must have the same team")
        if len({player.strategy.updates_a_step for player in self.players}) > 1:
            raise ValueError("all players of a run must make equally many updates per step")
        self.clock, self.callbacks = self.clock or self.team.clock, list(self.callbacks)
        self.front = weakref.ref(self)
        self.history, self.steps, self.stopped = History(), 0, None
        self.lost_ranks, self.saving = [], None
        self.compiled: dict[tuple[str, str], str] = {}
        self._first_batch_size = self.batch_size  # callbacks.GrowBatch changes it
        self._attached, self._generation = False, 0  # the team's when its ranks last agreed
        self._made = self.team.generation
        self.begin_epoch()

    player = property(lambda self: self.players[0])
    replica = property(lambda self: self.player.replica)
    strategy = property(lambda self: self.player.strategy)
    optimizer = property(lambda self: self.player.optimizer)
    schedule = property(lambda self: self.player.schedule)

    @property
    def batch_size(self) -> int:
        """Samples per update. Its batches are those of a round, which may have several updates."""
        return self.batches.batch_size // self.strategy.updates_a_step

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
            if self.team.generation != self._made:  # and teams of some of the ranks failed, too
                for player in self.players:
                    player.strategy.holding.recover()
            loop.attach()
            for player in self.players:
                random_state.spread(player.strategy.sharers, player.replica)
        self.begin_epoch()
        self._attached, self._generation = True, self.team.generation

    def settings(self) -> dict[str, float]:
        """The settings that must be equal on all ranks, and in a resumed run."""
        others = {f"parameters of {p.name}": p.strategy.holding.size for p in self.players[1:]}
        return {
            "parameters": self.strategy.holding.size,
            **others,
            **sizes(self.dataset, self._first_batch_size),
            **self.strategy.settings,
            "seed": self.batches.seed,
            **({"steps at once": 1} if self.at_once else {}),
            **({} if self.batches.shuffle else {"order of the samples kept": 1}),
            "pieces a batch": self.accumulate,
            "clip norm": self.clip_norm or 0,
        }

    def check_agreement(self, loop) -> None:
        """Raise ValueError on all ranks if they were given different data or settings."""
        mine = self.settings() | of_data(self.dataset)
        for player in self.players:
            # Different rates on ranks that update slices of one model would not show as drift.
            rates = [player.schedule(s) for s in (0, 1, 10, 100, 1000)] if player.schedule else []
            scale = player.strategy.loss_scale
            rule = numbered(player.optimizer, player.strategy.holding.whole)
            given = {"optimizer": rule, "learning rates": rates or "constant"}
            given |= of_model(player.replica) | {"loss scale": scale and scale.settings}
            mine |= {self.label(player, name, "'s "): value for name, value in given.items()}
        names = (type(getattr(one, "callback", one)).__name__ for one in self.callbacks)
        mine["callbacks"] = ", ".join(names) or "none"
        mine |= {"correct_momentum": self.correct_momentum, "layout": repr(self.layout)}
        mine["strategy"] = loop.identity or self.strategy.name
        mine |= {"steps between checks": self.check_every}
        mine["steps between checkpoints"] = None if self.saving is None else self.saving.every
        check_same(self.team, mine)

    def check_same_weights(self) -> None:
        for player in self.players:
            if player.strategy.alike:
                check_same_weights(player.strategy.copies, player.replica)

    # The position of training

    @property
    def steps_per_epoch(self) -> int | None:
        """Updates per epoch, of all ranks together; None for a stream of unknown length."""
        if isinstance(self.dataset.train, Stream):
            return self.dataset.train.steps
        return self.strategy.updates_an_epoch(len(self.dataset.train), self.batch_size)

    def begin_epoch(self) -> None:
        self.round, self.sums = 0, np.zeros((len(self.players), len(SUMS)))
        for player in self.players:
            if trained_sums(player.replica) is not None:
                player.replica.trained = {}

    def totals(self) -> np.ndarray:
        """`sums` over the samples of all ranks. Collective."""
        pairs = zip(self.players, self.sums, strict=True)
        return np.array([player.strategy.total(sums) for player, sums in pairs])

    def place(self) -> dict:
        """The position of training, for a checkpoint."""
        rows = (self.totals() / self.strategy.apart).tolist()
        first, *others = (dict(zip(SUMS, row, strict=True)) for row in rows)
        place = {"steps": self.steps, "round": self.round, "sums": first}
        place |= {"sums of others": others} if others else {}
        ways = [compiled(player.replica) for player in self.players]
        place |= {"compiled": ways} if any(ways) else {}
        trained = [self.trained_sums(player) for player in self.players]
        if any(trained):
            place["trained"] = [
                {k: np.asarray(v).tolist() for k, v in of.items()} for of in trained
            ]
        return place

    def go_to(self, place: dict) -> None:
        """The reverse of `place`."""
        self.steps, self.round = place["steps"], place["round"]
        rows = [place["sums"], *place.get("sums of others", ())]
        self.sums = np.array([[row[name] for name in SUMS] for row in rows])
        for player, ways in zip(self.players, place.get("compiled", ()), strict=False):
            self.compiled |= {(player.name, what): way for what, way in (ways or {}).items()}
        for player, sums in zip(self.players, place.get("trained", ()), strict=False):
            if trained_sums(player.replica) is not None:
                copies = player.strategy.copies
                player.replica.trained = sums if copies.rank == copies.size - 1 else {}

    def trained_sums(self, player: Player) -> dict[str, np.ndarray]:
        """Its `Replica.trained` over all ranks; {} if it counts nothing. Collective."""
        found = trained_sums(player.replica)
        return {} if found is None else summed(player.strategy.copies, found)

    def metrics_of_training(self, player: Player) -> dict[str, float]:
        """Metrics over the samples of this epoch, beside the loss, as each step found them."""
        sums = self.trained_sums(player)
        found = metrics_over(player.strategy.copies, player.replica, sums) if sums else {}
        return {self.label(player, name): found[name] for name in found if name != "loss"}

    # Events of training

    def notify(self, event: str, *arguments) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self.front(), *arguments)

    def set_rate(self, step: int, correct_momentum: bool = True) -> None:
        """Use the scheduled learning rates of `step` from now on, where there is a schedule."""
        for player in self.players:
            if player.schedule is not None:
                player.strategy.set_rate(
                    player.schedule(step), correct_momentum and self.correct_momentum
                )

    def label(self, player: Player, text: str, mark: str = "_") -> str:
        """`text`, after the player's name if the run has several players."""
        return text if len(self.players) == 1 else f"{player.name}{mark}{text}"

    def end_epoch(
        self, bar, epoch: int, losses: dict, metrics: dict, samples: float, seconds: float, **more
    ) -> dict:
        """Append the row of `epoch` to the history, show it, and return it.

        Raises NotFinite if a validation loss is not finite.
        """
        rates = {}
        for player in self.players:
            rate = player.strategy.optimizer.learning_rate
            loss = metrics.get(self.label(player, "loss"), 0.0)  # 0: without validation data
            if not np.isfinite(loss):
                what = self.label(player, f"the validation loss is {loss}", ": ")
                kept, found = self.dataset.validation, None
                if isinstance(kept, Hdf5Data):
                    if self.team.rank:  # rank 0 alone reads them all, and raises
                        self.team.barrier()
                    found = kept.not_a_number(slice(None))
                raise NotFinite(what, f"after epoch {epoch + 1}", rate, found)
            if player.schedule is not None:
                rates[self.label(player, "learning_rate")] = rate
        shown = losses | {f"val_{name}": value for name, value in metrics.items()}
        speed = float(samples / seconds) if seconds else np.inf  # the clock may stand still
        speed = {"samples_per_second": speed, "seconds": float(seconds)}
        row = {"epoch": epoch + 1} | shown | speed | rates | more
        self.history.epochs.append(row)
        self.begin_epoch()
        bar.set_postfix({n: f"{value:.4f}" for n, value in shown.items()}, refresh=False)
        return row

    def critical_batch_sizes(self) -> dict[str, float]:
        """The critical batch size (step/noise.py) of each player that measures it, by column."""
        label = "critical_batch_size"
        found = ((player, player.strategy.noise) for player in self.players)
        return {self.label(player, label): one.take() for player, one in found if one is not None}

    def show(self, shown: bool, ends: bool = False) -> None:
        """Have the weights that are to be validated and saved, or those that are trained, again."""
        for player in self.players:
            player.strategy.show(shown, ends)

    def evaluate(self, data=None) -> dict[str, float]:
        """Metrics over the validation data (or `data`), each rank evaluating its share.

        Without validation data, there are none.
        """
        data, found = self.dataset.validation if data is None else data, {}
        if data is None:
            return found
        with span("validation"):
            for player in self.players:
                metrics = evaluate(
                    player.strategy.sharers, player.replica, data, self.validation_batch_size,
                    lambda batch, player=player: player.select(batch, self),
                )  # fmt: skip
                found |= {self.label(player, name): value for name, value in metrics.items()}
        return found

    def save_model(self, path) -> None:
        """Write the trained model to a file, by rank 0, with its optimizer's state if it can.

        Ranks in step call it together; with a master, rank 0 may call it alone.
        """
        holding, more, parameters = self.strategy.holding, (), {}
        if self.replica.traits.saves_optimizer:
            found = self.strategy.trained_by()
            more = (found._replace(schedule=self.schedule, clip_norm=self.clip_norm),)
        if not holding.complete:
            size = holding.size if self.team.rank == 0 else 0
            parameters["parameters"] = holding.joined(self.replica.parameters, 0, size)
        if self.team.rank == 0:
            self.replica.save(path, *more, **parameters)

    def stop(self, why: str) -> None:
        """Make this epoch the last one."""
        self.stopped = why
