"""Games are trained by every strategy, on ranks as by one process; resumed; watched over."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from counted_runs import run_until

from numba_kernels.optimizers import SGD
from numba_kernels.team.team import Team
from tutorial_dl import data
from tutorial_dl.layout.layout import Layout
from tutorial_dl.replica.gan import Rules, numbered
from tutorial_dl.replica.one_dimensional_gan import OneDimensionalGan
from tutorial_dl.runtime.callback import Callback
from tutorial_dl.runtime.game import GanPlayer
from tutorial_dl.training.gan import average_of, gan_trainer
from tutorial_dl.training.gan_watch import Watch, spread_of
from tutorial_dl.training.trainer import TrainingError

SAMPLES, BATCH = 203, 20  # 11 rounds per epoch, the last one of 3 samples


def normal_data():
    x = np.random.default_rng(0).normal(1, 0.5, SAMPLES + 41)
    parts = (data.Data.of(part, None) for part in (x[:SAMPLES], x[SAMPLES:]))
    return data.Dataset("normal", *parts)


def trainer_of(strategy="synchronous", team=None, rules=None, spectral=False, **options):
    rules = Rules(**{"rates": (0.01, 0.02)} | (rules or {}))
    game = OneDimensionalGan(8, rules, spectral, dtype=np.float64)
    given = {"batch_size": BATCH, "progress": False} | options
    return gan_trainer(game, normal_data(), strategy, team=team, **given)


FORMS = (
    {"rules": {"smoothing": 0.1, "flips": 0.1}},
    {"rules": {"loss": "wasserstein", "discriminator_steps": 3}, "spectral": True},
    {"optimizer": "momentum", "clip_norm": 1.0},
    {"rules": {"turns": "simultaneous", "discriminator_steps": 2}},
    {"rules": {"turns": "simultaneous"}, "optimizer": "momentum", "clip_norm": 1.0},
)


def weights_of(trainer):
    return [player.replica.parameters.copy() for player in trainer.players]


def equals_serial(expected):
    team = Team()
    for options, (weights, row) in zip(FORMS, expected, strict=True):
        trainer = trainer_of(team=team, **options)
        trainer.fit(2)
        for mine, alone in zip(weights_of(trainer), weights, strict=True):
            np.testing.assert_allclose(mine, alone, rtol=1e-5, atol=1e-9)
        for name in ("generator_loss", "val_discriminator_loss", "spread"):
            np.testing.assert_allclose(trainer.history.last[name], row[name], rtol=1e-5)


@pytest.mark.thorough(but="2")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_synchronous_is_serial(on_ranks, ranks):
    """22 steps: with more ranks than one, shares are uneven; the last batch has 3 samples."""
    expected = []
    for options in FORMS:
        trainer = trainer_of("serial", **options)
        first = weights_of(trainer)
        trainer.fit(2)
        assert all((a != b).any() for a, b in zip(first, weights_of(trainer), strict=True))
        assert trainer.steps == 22
        updates = [player.strategy.state.step for player in trainer.players]
        assert updates == [22 // options.get("rules", {}).get("discriminator_steps", 1), 22]
        expected.append([[w.tolist() for w in weights_of(trainer)], trainer.history.last])
    expected = json.loads(json.dumps(expected))
    on_ranks(ranks, equals_serial, expected)
    if ranks > 1:  # on two nodes
        env = {"NUMBA_KERNELS_NODE": str(ranks - 1)}
        on_ranks(ranks, equals_serial, expected, env=env)


def resumed(folder):
    """Killed after an epoch and a half, and resumed: the same bits, also of the average."""

    team = Team()
    whole = trainer_of(team=team, **FORMS[1])
    whole.fit(3)
    files = {"checkpoint": folder, "checkpoint_every": 4}
    run_until(trainer_of(team=team, **files, **FORMS[1]), 17)
    again = trainer_of(team=team, **files, **FORMS[1])
    assert again.resume() and again.steps == 16
    again.fit_to(3)
    for mine, uninterrupted in zip(weights_of(again), weights_of(whole), strict=True):
        np.testing.assert_array_equal(mine, uninterrupted)
    np.testing.assert_array_equal(average_of(again).weights, average_of(whole).weights)
    assert again.history.last["val_generator_loss"] == whole.history.last["val_generator_loss"]


def test_resumed_bit_for_bit(on_ranks, tmp_path):
    on_ranks(2, resumed, str(tmp_path / "run"))


def each_strategy(epochs, **its):
    """Every strategy brings the generator's mean from far away nearer to the data's."""
    from tutorial_dl.training.gan_quality import Quality

    team = Team()
    for strategy, options in (
        *([] if its else [("hogwild", {})]),
        ("downpour", {}),
        ("elastic_averaging", {"rates": (0.02, 0.02), "momentum": 0.5}),
        ("gradient_energy_matching", {"rates": (0.05, 0.05), "momentum": 0.5}),
        ("downpour", {"synchronous": True}),
    ):
        trainer = trainer_of(strategy, team, batch_size=10, seed=1, **its, **options)
        game = trainer.replica.game
        with_master = trainer.loop.has_master
        trainer.run.callbacks.append(Quality(game, normal_data(), alone=with_master))
        trainer.replica.parameters[game.generator.segments[-1].offset] = -3  # the offset c
        trainer.fit(epochs)
        mean = game.sample((), 2000).mean()
        assert abs(mean - 1) < 1.5, (strategy, mean)
        row = trainer.history.last
        assert "val_generator_loss" in row and np.isfinite(row["val_discriminator_loss"])
        assert row["distance"] < 1.5 and row["spread"] > 0  # rank 0 of a master tells all ranks
    if not its:
        with pytest.raises(ValueError, match="'local steps' trains one model, and a GAN is two"):
            trainer_of("local_steps", team)


def test_every_strategy_trains_a_game(on_ranks):
    on_ranks(3, each_strategy, 25)


def under_sub_masters(epochs):
    """Rules with a master, with two sub-masters of a worker each, on five ranks; see make soak."""
    each_strategy(epochs, layout=Layout(masters=2, workers=1))


def test_two_strategies_and_what_is_refused():
    for pair in (("serial", "hogwild"), ("synchronous", "hogwild"), ("synchronous", "serial")):
        trainer_of(pair[0], discriminator=pair[1]).fit(1)
    at_once = trainer_of(discriminator="serial", rules={"turns": "simultaneous"})
    assert [player.strategy.name for player in at_once.players] == ["synchronous", "serial"]
    with pytest.raises(ValueError, match="both players train by one rule, got 'serial'"):
        trainer_of("downpour", discriminator="serial")
    with pytest.raises(ValueError, match=r"discriminator_steps must be 1, got 2; .*'synchronous'"):
        trainer_of("downpour", rules={"discriminator_steps": 2})
    with pytest.raises(ValueError, match=r"simultaneous turns need .*, got hogwild$"):
        trainer_of("hogwild", rules={"turns": "simultaneous"})
    with pytest.raises(TypeError, match="overlap saved no time and has gone: leave it out"):
        trainer_of("serial", overlap=True)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        trainer_of("serial", batch_size=0)
    with pytest.raises(ValueError, match="learning_rate must satisfy"):
        trainer_of("serial", rates=(0.1, -1.0))


def watched(**options):
    said = []
    trainer = trainer_of("serial", watch=False, **options)
    trainer.run.callbacks.append(Watch(trainer.replica.game, said.append))
    return trainer, said


def test_a_collapse_and_dead_players_are_said():
    trainer, said = watched()
    trainer.fit(1)
    assert not said and trainer.history.last["spread"] > 0.1
    generator = trainer.replica
    generator.segments[2].view(generator.parameters)[:] = 0  # all samples are the same number
    trainer.players[0].strategy.set_rate(0.0)
    trainer.fit(2)
    assert len(said) == 1 and trainer.history.last["spread"] < 1e-6
    assert said[0].startswith("note: step 22: mode collapse: ") and "wasserstein" in said[0]

    trainer, said = watched(rates=(0.0, 0.0))
    trainer.fit(1)
    judge = trainer.players[1].replica
    judge.parameters[:] = 0  # w, v = 0: gradients vanish but for the offset's, 0 in equilibrium
    trainer.players[1].strategy.set_rate(0.01)
    generator = trainer.replica
    generator.parameters[-1] = 1e3  # where D is in no doubt
    judge.segments[0].view(judge.parameters)[0], judge.segments[2].view(judge.parameters)[0] = (
        -10,
        200,
    )
    judge.segments[1].view(judge.parameters)[0] = 1e3
    trainer.fit(1)
    assert any("the generator is dead" in words for words in said)
    assert any("the discriminator is dead" in words for words in said)


def test_a_collapse_within_each_class_is_found():
    """All samples of a class are the same, though those of two classes differ as in the data."""
    random = np.random.default_rng(0)
    y = random.integers(0, 4, 4000)
    x = 10.0 * y[:, None] + random.normal(0, [0.5, 2.0], (4000, 2))
    assert spread_of(x, y) == pytest.approx((0.5 + 2.0) / 2, rel=0.05)
    assert spread_of(10.0 * y[:, None], y) == 0 < np.std(10.0 * y)
    assert spread_of(x, np.empty(0)) == pytest.approx(x.std(axis=0).mean())
    energies = random.uniform(10, 500, (4000, 1))  # neighbours differ by 0.12 on average
    found = spread_of(energies + random.normal(0, 3, (4000, 1)), energies)
    assert found == pytest.approx(3, rel=0.05)

    trainer, said = watched()
    trainer.fit(1)
    assert not said
    game, row = trainer.replica.game, {}
    game.conditional, game.generate = True, lambda noise, y: 10.0 * y
    dataset = data.Dataset("classes", data.Data.of(x[:, 0], y), None)
    seen = SimpleNamespace(
        dataset=numbered(dataset), players=trainer.players, team=trainer.team, steps=22,
        batches=trainer.batches,
    )  # fmt: skip
    trainer.run.callbacks[-1].on_epoch_end(seen, row)
    assert row["spread"] == 0
    assert "step 22: mode collapse: generated samples of a class spread 0 times" in said[0]


def test_nan_names_player_step_and_remedy():
    trainer = trainer_of("serial")
    trainer.replica.game.discriminator.parameters[0] = np.nan
    with pytest.raises(
        TrainingError, match=r"generator: the loss is nan at step 1 .*; use a learning rate below"
    ):
        trainer.fit(1)


def test_simultaneous_gradients_are_taken_at_the_same_weights():
    """Gradient descent by hand: w <- w - rate g(w, v), v <- v - rate h(w, v)."""
    rules = {"turns": "simultaneous", "rates": (0.1, 0.3)}
    trainer = trainer_of("serial", rules=rules, optimizer=SGD(0.1), watch=False)
    batch = next(iter(trainer.run.batches.epoch(0, 0)))
    game, expected = trainer.replica.game, []
    for player, rate in zip(trainer.players, (0.1, 0.3), strict=True):
        assert isinstance(player, GanPlayer)
        player.replica.compute_gradient(player.select(batch, trainer.run))
        expected.append(player.replica.parameters - rate * player.replica.gradient)
    trainer.run.agree(trainer.loop)
    found = []
    trainer.run.notify = lambda event, *_: found.append([s.parameters.copy() for s in game.sides])
    trainer.fit(1)
    for after, by_hand in zip(found[1], expected, strict=True):
        np.testing.assert_allclose(after, by_hand, rtol=1e-12)


def test_the_average_of_weights():
    """Against its definition, step by step."""
    seen = []

    class See(Callback):
        def on_step_end(self, trainer, loss, samples):
            seen.append(trainer.replica.parameters.copy())

    trainer = trainer_of("serial", rules={"average": 0.5}, callbacks=[See()])
    expected = trainer.replica.parameters.copy()
    trainer.fit(1)
    for step, weights in enumerate(seen, start=1):
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weights
    average = average_of(trainer)
    np.testing.assert_allclose(average.weights, expected, rtol=1e-12)
    own = trainer.replica.parameters.copy()
    with average.swapped():
        np.testing.assert_array_equal(trainer.replica.parameters, average.weights)
    np.testing.assert_array_equal(trainer.replica.parameters, own)
