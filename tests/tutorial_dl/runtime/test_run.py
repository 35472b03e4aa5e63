"""A Run of one's own: its clock, its team, and the objects given to it."""

import math
from contextlib import redirect_stderr
from io import StringIO

import pytest
from faults import Fault, fail, strike
from rank_tests import with_ranks

from numba_kernels import optimizers
from numba_kernels.team import team as teams
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, models, strategies
from tutorial_dl.data import Batches
from tutorial_dl.runtime.callback import callbacks_of
from tutorial_dl.runtime.errors import NotFinite, TrainingError
from tutorial_dl.runtime.in_step import InStepLoop
from tutorial_dl.runtime.master.loop import MasterLoop
from tutorial_dl.runtime.run import Player, Run
from tutorial_dl.strategies import Downpour
from tutorial_dl.training.callbacks import Throughput
from tutorial_dl.training.timeline import Timeline


class Ticks:
    """A clock that advances by a second each time it is read."""

    def __init__(self):
        self.seconds = 0.0

    def now(self):
        self.seconds += 1.0
        return self.seconds


class Still:
    """A clock that stands still, before its zero."""

    def now(self):
        return -1.0


def made(team, strategy=None, **options):
    """The loop of a run."""
    digits = data.digits()
    strategy = strategy or strategies.Synchronous(team)
    kind = MasterLoop if isinstance(strategy, strategies.Rule) else InStepLoop
    player = Player(models.dense(digits), strategy, optimizers.get("sgd"), team)
    run = Run(
        [player], digits, Batches(digits.train, 100, 0, *kind.shard(team)),
        kind.layout(strategy, team), team, **options,
    )  # fmt: skip
    return kind(run)


@with_ranks(1)
def test_seconds_come_from_the_clock_of_the_run():
    """Times come from the run's clock, and the run has all else that a Trainer offers."""
    seen, bar, closed = [], StringIO(), []
    callbacks = callbacks_of([lambda trainer, row: seen.append((trainer, row["epoch"]))])
    loop = made(Team(), clock=Ticks(), callbacks=callbacks, timeline=Timeline())
    trainer, loop.run.batches.close = Trainer.of(loop), lambda: closed.append(True)
    with redirect_stderr(bar):
        history = trainer.fit(2)
    assert history.column("seconds") == [1.0, 1.0]
    assert seen == [(trainer, 1), (trainer, 2)] and trainer.steps == 2 * trainer.steps_per_epoch
    names = [name for name, *_ in trainer.timeline.ranks[0]["spans"]]
    assert names.count("gradient") == trainer.steps and names.count("validation") == 2
    assert "synchronous on 1 rank, epoch 2 of 2: loss " in bar.getvalue() and closed


def with_a_clock_that_stands_still(strategy):
    """The history has no seconds then; a worker that fails is noticed all the same."""
    team, lines = Team(), []
    calls = [Throughput(5, lines.append)]
    loop = made(team, strategies.get(strategy, team), clock=Still(), callbacks=calls)
    trainer = Trainer.of(loop, progress=False)
    lost = strategy == "downpour" and team.rank == 2
    undo = strike("gradient", 1, fail) if lost else lambda: None
    try:
        trainer.fit(2)
    except Fault:
        assert lost
    else:
        assert not lost
        history = trainer.history
        speeds = [(row["seconds"], row["samples_per_second"]) for row in history.epochs]
        assert speeds == [(0.0, math.inf)] * 2
        assert bool(lines) == (team.rank == 0) and all("inf samples/s" in line for line in lines)
        assert len(history.lost) == (strategy == "downpour")
    undo()
    team.recover()


@pytest.mark.parametrize(("ranks", "strategy"), [(1, "synchronous"), (3, "downpour")])
def test_a_clock_that_stands_still(on_ranks, ranks, strategy):
    on_ranks(ranks, with_a_clock_that_stands_still, strategy)


@with_ranks(2)
def test_a_run_of_ones_own_with_a_master(folder):
    """A run of one's own with a master trains, writes checkpoints, and resumes."""
    team = Team()
    for epochs in (1, 2):
        loop = made(team, Downpour())
        loop.run.saving = loop.saving(folder, None, 3)
        trainer = Trainer.of(loop, progress=False)
        assert trainer.resume() == (epochs == 2)
        assert trainer.fit_to(epochs).column("epoch") == [*range(1, epochs + 1)]
        assert trainer.steps == epochs * trainer.steps_per_epoch
        team.barrier()


@with_ranks(3)
def test_a_run_makes_no_team_of_its_own():
    """Strategies without their own team train on the run's team, and make no other."""
    whole = teams.Team()
    part = whole.split(int(whole.rank == 2))

    def no_world(*communicator, **options):
        assert communicator, "a team of all ranks was made"
        return right(*communicator, **options)

    # (Files of strategies are loaded before Team is replaced: annotations need the class.)
    kinds = [strategies.Downpour, strategies.Synchronous, strategies.Hogwild, strategies.Serial]
    kinds = kinds[:3] if part.size > 1 else kinds[1:]
    digits, right = data.digits(), teams.Team
    teams.Team = no_world
    try:
        for kind in kinds:
            trainer = Trainer(models.softmax(digits), digits, kind(), team=part, progress=False)
            assert trainer.team is part is trainer.strategy.team
            trainer.fit(1)
        assert made(part, strategies.Synchronous()).run.strategy.team is part
    finally:
        teams.Team = right
    own = strategies.Serial(whole.split(whole.rank))  # a strategy's own team comes first
    assert Trainer(models.softmax(digits), digits, own, team=whole).team is own.team
    with pytest.raises(ValueError, match="must have the same team"):
        made(part, strategies.Synchronous(whole))
    with pytest.raises(ValueError, match="'serial' uses 1 rank, not 3"):
        made(whole, strategies.Serial())
    whole.barrier()


def test_not_finite_says_what_where_and_what_helps():
    error = NotFinite("the loss is nan", "on rank 2", 0.5)
    assert isinstance(error, TrainingError) and (error.what, error.rate) == ("the loss is nan", 0.5)
    assert "\n" not in str(error) and "on rank 2; use a learning rate below 0.5" in str(error)
