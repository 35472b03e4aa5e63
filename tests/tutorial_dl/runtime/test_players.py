"""Runs of several players: each is trained as in a run of its own, or they play a game."""

import signal
from types import SimpleNamespace

import numpy as np
import pytest
from counted_runs import Cut, at_step, some_digits
from rank_tests import with_ranks

from numba_kernels import PeerError, optimizers
from numba_kernels.optimizers import SGD
from numba_kernels.shared.window import aligned
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, models, strategies
from tutorial_dl.data import Batches
from tutorial_dl.replica.base import Replica, lay_out
from tutorial_dl.runtime.errors import Terminated
from tutorial_dl.runtime.in_step import InStepLoop
from tutorial_dl.runtime.run import Player, Run
from tutorial_dl.training import schedules

EPOCHS, ROUNDS = 3, 11


def trainer_of(team, players, at=None, happens=None, folder=None):
    """A Trainer of a run of these players; after step `at`, `happens()` on the last rank."""

    def there(trainer):
        if team.rank == team.size - 1:
            happens()

    digits = some_digits(203)
    batches = Batches(digits.train, 20, 0, *InStepLoop.shard(team))
    layout = InStepLoop.layout(players[0].strategy, team)
    loop = InStepLoop(Run(players, digits, batches, layout, team, callbacks=[at_step(at, there)]))
    if folder is not None:
        loop.run.saving = loop.saving(folder, 4, 3)
    return Trainer.of(loop, progress=False)


def trained(*arguments, **options):
    trainer = trainer_of(*arguments, **options)
    trainer.fit(EPOCHS)
    return trainer


def two(team):
    """Two players with different models, optimizers and learning rates."""
    rate = schedules.cosine(0.1, EPOCHS * ROUNDS)
    dense, softmax = (
        models.dense(some_digits(203), seed=1),
        models.softmax(some_digits(203), seed=2),
    )
    return [
        Player(dense, strategies.Synchronous(team), optimizers.get("adam"), team, name="one"),
        Player(
            softmax, strategies.Synchronous(team, compression="top_k"),
            optimizers.get("momentum").at_rate(rate(0)), team, rate, "two",
        ),
    ]  # fmt: skip


def equal(run, number, alone):
    """Player `number` of a run ends with the bits, and the columns, of a run of its own."""
    mine, its, name = run.players[number], alone, run.players[number].name
    np.testing.assert_array_equal(mine.replica.parameters, its.replica.parameters)
    state, other = mine.strategy.update.state, its.strategy.update.state
    np.testing.assert_array_equal(state.slots, other.slots)
    for row, expected in zip(run.history.epochs, alone.history.epochs, strict=True):
        for column in ("loss", "val_loss", "val_accuracy", "learning_rate"):
            ours = f"val_{name}_{column[4:]}" if "val_" in column else f"{name}_{column}"
            assert (ours in row) == (column in expected)
            assert row.get(ours) == expected.get(column)


@pytest.mark.thorough(but="2")
@with_ranks(1, 2)
def test_independent_players_end_as_two_runs_would(folder):
    """Also if the run is ended by a rank that fails, and then by SIGTERM, and resumed."""

    def fails():
        raise Cut("by purpose")

    team = Team()
    alone = [trained(team, [player]) for player in two(team)]
    together = trained(team, two(team))
    assert together.steps == alone[0].steps == EPOCHS * ROUNDS
    with pytest.raises(Cut if team.rank == team.size - 1 else PeerError, match="by purpose"):
        trained(team, two(team), 19, fails, folder)
    team.recover()
    ended = trainer_of(team, two(team), 20, lambda: signal.raise_signal(signal.SIGTERM), folder)
    assert ended.resume() and ended.steps == 16
    with pytest.raises(Terminated) as end:
        ended.fit_to(EPOCHS)
    assert 20 <= end.value.steps <= 22  # the end of the epoch
    resumed = trainer_of(team, two(team), folder=folder)
    assert resumed.resume() and resumed.steps == end.value.steps
    resumed.fit_to(EPOCHS)
    for number in range(2):
        equal(together, number, alone[number])
        equal(resumed, number, alone[number])
    with pytest.raises(RuntimeError, match=r"further players \['two'\], not \[\]"):
        trainer_of(team, two(team)[:1], folder=folder).resume()


@with_ranks(1, 2)
def test_a_game_has_its_closed_form():
    """min over x, max over y of x y, in turn: (x, y) is multiplied by a matrix in each round."""

    class Number(Replica):
        segments = lay_out([("number", (1,))])

        def __init__(self, value):
            self.parameters, self.gradient = aligned(1, np.float64), aligned(1, np.float64)
            self.parameters[:] = value

        def compute_gradient(self, batch):
            others, _ = batch
            self.gradient[:] = others.mean() if len(others) else 0
            return float(self.parameters[0] * self.gradient[0]), len(others)

        def evaluate(self, batches):
            samples = sum(len(self.parameters[0] * others) for others, _ in batches)
            return {"loss": float(self.parameters[0]), "samples": samples}

    class Opponent(Player):
        def select(self, batch, run):
            (other,) = (player for player in run.players if player is not self)
            sign = 1 if self.name == "x" else -1
            return np.full(len(batch[0]), sign * other.replica.parameters[0]), batch[1]

    team, rate = Team(), 0.1
    strategies_ = strategies.Synchronous(team), strategies.Synchronous(team)
    run = trained(team, [
        Opponent(Number(value), strategy, SGD(rate), team, name=name)
        for value, strategy, name in zip((1.0, 0.5), strategies_, "xy", strict=True)
    ])  # fmt: skip
    matrix = np.array([[1, -rate], [rate, 1 - rate**2]])
    expected = np.linalg.matrix_power(matrix, EPOCHS * ROUNDS) @ [1.0, 0.5]
    found = [player.replica.parameters[0] for player in run.players]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    row = run.history.last
    np.testing.assert_allclose([row["val_x_loss"], row["val_y_loss"]], found, rtol=1e-12)
    assert {"x_loss", "y_loss"} < row.keys()


def test_players_need_names_of_their_own():
    strategy = SimpleNamespace(updates_a_step=1, join=lambda team: None, take=lambda replica: None)
    players = [Player(None, strategy, None, None, name=name) for name in ("one", "one")]
    with pytest.raises(ValueError, match="need different names"):
        Run(players, None, None, None, None)
