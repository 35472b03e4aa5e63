"""A Run without a Trainer: its clock, its team, and the objects given to it."""

import math

import pytest


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


def made(team, clock=None, callbacks=(), strategy="synchronous"):
    from numba_kernels import optimizers
    from tutorial_dl import data, models, strategies
    from tutorial_dl.data import Batches
    from tutorial_dl.runtime.in_step import InStepLoop
    from tutorial_dl.runtime.master.loop import MasterLoop
    from tutorial_dl.runtime.run import Player, Run

    digits = data.digits()
    loop = MasterLoop if strategy == "downpour" else InStepLoop
    strategy = strategies.get(strategy, team)
    player = Player(models.dense(digits), strategy, optimizers.get("sgd"), team)
    run = Run(
        [player], digits, Batches(digits.train, 100, 0, *loop.shard(team)),
        loop.layout(strategy), team, clock, callbacks=callbacks,
    )  # fmt: skip
    return run, loop(run)


def with_a_clock():
    """Times come from the run's clock; without a Trainer, callbacks get the run."""
    from tqdm import tqdm

    from numba_kernels.team.team import Team
    from tutorial_dl.runtime.callback import callbacks_of

    seen = []
    callbacks = callbacks_of([lambda run, row: seen.append((run, row["epoch"]))])
    run, loop = made(Team(), Ticks(), callbacks)
    run.agree(loop)
    loop.train(2, tqdm(disable=True), [])
    assert [row["seconds"] for row in run.history.epochs] == [1.0, 1.0]
    assert seen == [(run, 1), (run, 2)] and run.steps == 2 * run.steps_per_epoch


def test_seconds_come_from_the_clock_of_the_run(on_ranks):
    on_ranks(1, with_a_clock)


def with_a_clock_that_stands_still(strategy):
    """The history has no seconds then; a worker that fails is noticed all the same."""
    from faults import Fault, fail, strike
    from tqdm import tqdm

    from numba_kernels.team.team import Team
    from tutorial_dl.training.callbacks import Throughput
    from tutorial_dl.training.trainer import reported

    team, lines = Team(), []
    run, loop = made(team, Still(), [Throughput(5, lines.append)], strategy)
    run.agree(loop)
    run.tell("on_fit_begin")
    lost = strategy == "downpour" and team.rank == 2
    undo = strike("gradient", 1, fail) if lost else lambda: None
    try:
        with reported():
            loop.train(2, tqdm(disable=True), [])
    except Fault:
        assert lost
    else:
        assert not lost
        speeds = [(row["seconds"], row["samples_per_second"]) for row in run.history.epochs]
        assert speeds == [(0.0, math.inf)] * 2
        assert bool(lines) == (team.rank == 0) and all("inf samples/s" in line for line in lines)
        assert len(run.history.lost) == (strategy == "downpour")
    undo()
    team.recover()


@pytest.mark.parametrize(("ranks", "strategy"), [(1, "synchronous"), (3, "downpour")])
def test_a_clock_that_stands_still(on_ranks, ranks, strategy):
    on_ranks(ranks, with_a_clock_that_stands_still, strategy)


def on_a_part():
    """A strategy without its own team trains on the run's team, and makes no other."""
    from numba_kernels.team import team as teams
    from tutorial_dl import Trainer, data, models, strategies

    whole = teams.Team()
    part = whole.split(int(whole.rank == 2))

    def no_world(*communicator, **options):
        assert communicator, "a team of all ranks was made"
        return right(*communicator, **options)

    # (The strategy's file is loaded before Team is replaced: its annotations need the class.)
    kind = strategies.Downpour if part.size > 1 else strategies.Synchronous
    digits, right = data.digits(), teams.Team
    teams.Team = no_world
    try:
        trainer = Trainer(models.dense(digits), digits, kind(), team=part, progress=False)
        assert trainer.team is part is trainer.strategy.team
        trainer.fit(1)
    finally:
        teams.Team = right
    whole.barrier()


def test_a_run_makes_no_team_of_its_own(on_ranks):
    on_ranks(3, on_a_part)


def test_not_finite_says_what_where_and_what_helps():
    from tutorial_dl.runtime.errors import NotFinite, TrainingError

    error = NotFinite("the loss is nan", "on rank 2", 0.5)
    assert isinstance(error, TrainingError) and (error.what, error.rate) == ("the loss is nan", 0.5)
    assert "\n" not in str(error) and "on rank 2; use a learning rate below 0.5" in str(error)
