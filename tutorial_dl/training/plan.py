"""`Plan`: everything that is decided about a run, once, before it begins.

    arguments of a Trainer ----\
    options of a command -------> Plan -> Run and its loop -> Trainer
    arguments of a GAN's trainer/

`Trainer(...)`, `setup.prepare(config, team)` and `gan_trainer(...)` write a Plan; `Plan.loop()`
makes the Run (runtime/run.py). A GAN is a plan with two players, whose arguments are pairs.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

from numba_kernels.optimizers.base import check_range
from numba_kernels.team.team import Team

from .. import replica as replicas
from .. import strategies
from ..config import ScheduleConfig
from ..data import Batches, Dataset, Stream, dataset_of
from ..data.dataset import varied
from ..data.weights import by_class
from ..replica.base import try_out
from ..replica.gan import Game, numbered
from ..replica.holding import Holding
from ..replica.proxy import Accumulating
from ..runtime.callback import callbacks_of
from ..runtime.compilation import check_way
from ..runtime.game import Together, players
from ..runtime.handing_out import StreamBatches, check_strategy, opened, print_notes
from ..runtime.in_step import InStepLoop
from ..runtime.loop import Loop
from ..runtime.master.loop import MasterLoop
from ..runtime.run import Player, Run
from ..strategies.base import Strategy
from ..strategies.loss_scale import loss_scale_of
from ..strategies.rule import Rule
from .keras_callbacks import adapted
from .optimizer_choice import Choice, choose, optimizers_of
from .schedules import planned, schedule_of

TRIED = 12  # samples that a model is tried out on


@dataclass
class Plan:
    """What is trained, on what, and how; its fields are the arguments of `Trainer`, which
    says what each of them means.
    """

    model: Any
    dataset: Any
    strategy: Any = "synchronous"
    optimizer: Any = None
    batch_size: int = 32
    seed: int = 0
    team: Team | None = None
    progress: bool = True
    validation_batch_size: int = 512
    timeline: Any = None
    learning_rate: Any = None
    correct_momentum: bool | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    callbacks: Sequence[Any] = ()
    checkpoint: Any = None
    checkpoint_every: int | None = None
    keep_checkpoints: int = 3
    check_every: int = 200
    loss_scale: Any = "auto"
    validation_split: float | None = None
    class_weight: Any = None
    shuffle: bool = True
    compile: str = "auto"

    def loop(self) -> Loop:
        """Decide all that is left, and make the Run and the loop that trains it. Collective.

        Raises:
            ValueError, TypeError: If something can't be used, before anything is trained.
        """
        # The team first: a rank that fails later then tells the others.
        strategies = self._strategies()
        dataset = self._data()
        both = self._players(*strategies)
        strategy, team = both[0].strategy, both[0].strategy.team
        kind = MasterLoop if isinstance(strategy, Rule) else InStepLoop
        check_strategy(dataset, strategy, kind is MasterLoop)
        print_notes(opened(dataset, team), team, self.batch_size)
        train, streamed = dataset.train, isinstance(dataset.train, Stream)
        size = train.batch_size if streamed else self.batch_size
        choices = [self._choose(player) for player in both]
        clip_norm = choices[0].clip_norm if self.clip_norm is None else self.clip_norm
        if clip_norm is not None:
            check_range("clip_norm", clip_norm)
        for player in both:
            self._try_out(player, dataset, size, kind)
        if streamed:
            batches = StreamBatches(train, team, self.seed, self.shuffle)
        else:
            at_once = size * strategy.updates_a_step
            ranks = kind.shard(strategy.sharers)
            batches = Batches(train, at_once, self.seed, *ranks, self.shuffle)
        game = self.model if len(both) > 1 else None
        run = Run(
            both,
            dataset,
            batches,
            kind.layout(strategy, team),
            team,
            callbacks=callbacks_of(map(adapted, self.callbacks)),
            timeline=self.timeline,
            validation_batch_size=both[0].replica.traits.fixed_batch or self.validation_batch_size,
            accumulate=self.accumulate,
            clip_norm=clip_norm,
            check_every=self.check_every,
            compile=self.compile,
            at_once=game is not None and game.rules.turns == "simultaneous",
        )
        updates = train.known if streamed else run.steps_per_epoch
        for player, choice in zip(both, choices, strict=True):
            self._set_rate(player, choice, run, updates)
        loop = kind(run)
        if self.checkpoint is not None:
            run.saving = loop.saving(self.checkpoint, self.checkpoint_every, self.keep_checkpoints)
        return loop

    def _data(self) -> Dataset:
        dataset = dataset_of(self.dataset, split=self.validation_split)
        dataset.check_finite()
        if isinstance(self.model, Game):
            dataset = numbered(dataset)
        if self.class_weight is not None:
            train = dataset.train
            weigh = Stream.weighted if isinstance(train, Stream) else by_class
            dataset = replace(dataset, train=weigh(train, self.class_weight))
        return dataset

    def _strategies(self) -> tuple[Strategy, ...]:
        """The strategy of each player, on the ranks that were given. Collective."""
        held, asked = getattr(self.model, "holding", None), self.strategy
        team, found = held.team if isinstance(held, Holding) else None, []
        if not isinstance(asked, tuple):
            asked = (asked,) * (1 + isinstance(self.model, Game))
        for one in asked:
            found.append(strategies.get(one) if isinstance(one, str) else one)
            found[-1].join(team if self.team is None else self.team)
            team = found[-1].team
        return tuple(found)

    def _players(self, first: Strategy, second: Strategy | None = None) -> list[Player]:
        """The models in training, each with its strategy and the optimizer that was asked for."""
        game, asked = self.model, self.optimizer
        if second is None:
            return [Player(replicas.of(game), first, asked, first.team)]
        for one in (first, second):
            if one.apart > one.updates_a_step:
                raise ValueError(
                    f"strategy {one.name!r} trains one model, and a GAN is two: use 'synchronous'"
                )
        optimizers = asked if isinstance(asked, tuple) else optimizers_of(game, asked)
        if isinstance(first, Rule):
            return [Player(Together(game, self.seed), first, optimizers[0], first.team)]
        return players(game, (first, second), optimizers)

    def _choose(self, player: Player) -> Choice:
        """Choose the player's optimizer, by which its strategy trains its replica."""
        strategy = player.strategy
        if self.accumulate != 1 and strategy.holding.stage:
            player.replica.accumulate(self.accumulate)
        elif self.accumulate != 1:
            player.replica = Accumulating(player.replica, self.accumulate)
        check_way(self.compile, player.replica)
        strategy.loss_scale = loss_scale_of(self.loss_scale, player.replica)
        choice = choose(player.replica, strategy, player.optimizer)
        choice.print_note(strategy.team)
        player.optimizer = choice.optimizer
        return choice

    def _set_rate(self, player: Player, choice: Choice, run: Run, updates: int | None) -> None:
        """Decide how the player's learning rate changes, with so many updates in an epoch."""
        rate, player.rate = self.learning_rate, choice.optimizer.learning_rate
        if isinstance(rate, ScheduleConfig):
            rate = planned(rate, player.rate, updates, run.batch_size)
        run.correct_momentum = self.correct_momentum
        if run.correct_momentum is None:
            run.correct_momentum = rate is not None or choice.schedule is None
        rate = choice.schedule if rate is None else rate
        if rate is not None:
            player.schedule = schedule_of(rate)
            player.optimizer = player.optimizer.at_rate(player.schedule(0))

    def _try_out(self, player: Player, dataset: Dataset, batch_size: int, kind: type[Loop]) -> None:
        """Raise ValueError if the model can't be trained so: by samples, ranks and strategy."""
        replica, strategy, ranks = player.replica, player.strategy, player.team.size
        whole, fixed = self.accumulate == 1, replica.traits.fixed_batch
        alone = whole and kind is InStepLoop and strategy.apart == 1
        if replica.traits.changes_parameters and not (alone and not strategy.one_copy):
            raise ValueError(
                "a model with SpectralNormalization, which changes weights as it computes, needs "
                "strategy 'synchronous' or 'serial', without accumulate and one_copy"
            )
        shared = not whole or (ranks > 1 and strategy.shares_batches)
        by_team = whole and not (kind is MasterLoop and strategy.synchronous)
        samples = dataset.train.take(slice(0, fixed)) if fixed else varied(dataset.train, TRIED)
        try_out(replica, samples, shared, by_team)
        if fixed is not None:
            check_fixed_batch(fixed, dataset, batch_size, shared or ranks > 1)


def check_fixed_batch(fixed: int, dataset: Dataset, batch_size: int, shared: bool) -> None:
    """Raise ValueError unless every batch has the number of samples that the model insists on."""
    words = f"the model is stateful, so its batches have {fixed} samples each"
    if shared:
        raise ValueError(
            f"{words}, so ranks can't share a batch: train on one rank without accumulate, or "
            "build its layers with stateful=False"
        )
    if batch_size != fixed:
        raise ValueError(f"{words}: batch_size must be {fixed}, got {batch_size}")
    for part in ("train", "validation"):
        data = getattr(dataset, part)
        if isinstance(data, Sized) and (n := len(data)) % fixed:
            raise ValueError(f"{words}: {part} data must have a multiple of that, got {n}")
