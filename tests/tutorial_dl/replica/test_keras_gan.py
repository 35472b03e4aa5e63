"""Games of Keras models: as the numpy game computes them, on ranks as in one process; misfits."""

import os
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from keras_networks import keras, layers

from tutorial_dl import data, models
from tutorial_dl.replica.gan import Round, Rules, draws, numbered
from tutorial_dl.replica.one_dimensional_gan import OneDimensionalGan
from tutorial_dl.runtime.callback import Callback

pytestmark = pytest.mark.xdist_group("keras")

FORMS = [
    Rules(), Rules(smoothing=0.1, flips=0.3), Rules("wasserstein"), Rules("wasserstein", penalty=0),
]  # fmt: skip


@contextmanager
def eagerly(yes=True):
    """Games are computed without graphs, which take longer to make than a few steps."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(yes)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def perceptron(dense, name):
    x = keras.Input((1,), dtype="float64", name="x")
    hidden = dense(5, activation="tanh", dtype="float64")(x)
    return keras.Model(x, dense(1, dtype="float64")(hidden), name=name)


@pytest.mark.thorough(
    but=["rules0-True", "rules1-False", "rules2-False", "rules3-False", "rules3-True"]
)
@pytest.mark.parametrize("spectral", [False, True])
@pytest.mark.parametrize("rules", FORMS)
def test_losses_and_gradients_are_those_of_the_numpy_game(rules, spectral):
    """As graphs where most is in them: draws of labels, and the slopes of the penalty."""
    with eagerly(not spectral or rules in (FORMS[0], FORMS[3])):
        as_the_numpy_game(rules, spectral)


def as_the_numpy_game(rules, spectral):
    from tutorial_dl.replica.keras_gan import KerasGan
    from tutorial_dl.replica.keras_spectral import SpectralDense

    theirs = OneDimensionalGan(5, rules, spectral, seed=3, dtype=np.float64)
    kind = SpectralDense if spectral else layers.Dense
    game = KerasGan(perceptron(layers.Dense, "generator"), perceptron(kind, "discriminator"), rules)
    assert game.noise == 1
    x = np.random.default_rng(1).normal(size=(7, 1))
    one = Round(x, (), *draws(0, 2, np.arange(7), 1, np.float64))
    for mine, its in zip(game.sides, theirs.sides, strict=True):
        for segment, weights in zip(mine.segments, its.weights, strict=True):
            segment.view(mine.parameters)[...] = weights.reshape(segment.shape)
    for mine, its in zip(game.sides, theirs.sides, strict=True):
        loss, samples = mine.compute_gradient((one, ()))
        expected, _ = its.compute_gradient((one, ()))
        assert samples == 7 and loss == pytest.approx(expected, rel=1e-9)
        assert mine.losses(one)["loss"] == pytest.approx(expected, rel=1e-9)
        for segment, gradient in zip(mine.segments, its.weights_gradient, strict=True):
            found = segment.view(mine.gradient).ravel()
            np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=1e-9)
        empty = Round(one.x[:0], (), one.noise[:0], one.uniforms[:0])
        assert mine.compute_gradient((empty, ())) == (0.0, 0) and not mine.gradient.any()
    np.testing.assert_allclose(
        game.generate(one.noise)[:, 0], theirs.generate(one.noise), rtol=1e-9
    )


def test_a_loss_of_ones_own_may_use_tensors_in_an_if():
    from tutorial_dl.replica.keras_gan import KerasGan

    noise, x = keras.Input((2,)), keras.Input((3,))
    judge = keras.Model(x, {"score": layers.Dense(1)(x), "sum": layers.Dense(1)(x)})

    def error(output, y, x):
        found = keras.ops.square(output[:, 0] - keras.ops.sum(x, axis=1))
        if keras.ops.max(found) > 1e6:
            found = 0 * found
        return found

    generator = keras.Model(noise, layers.Dense(3)(noise))
    game = KerasGan(generator, judge, Rules(auxiliary={"sum": 1.0}), {"sum": error})
    x = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    one = Round(x, (), *draws(0, 2, np.arange(5), 2, np.float32))
    expected = np.mean((np.asarray(judge(x)["sum"])[:, 0] - x.sum(1)) ** 2)
    assert np.isfinite(game.discriminator.compute_gradient((one, ()))[0])
    assert game.discriminator.losses(one)["sum"] == pytest.approx(expected, rel=1e-5)
    # One graph serves any number of samples: the last batch of an epoch is often a smaller one.
    fewer = Round(x[:3], (), one.noise[:3], one.uniforms[:3])
    assert np.isfinite(game.discriminator.compute_gradient((fewer, ()))[0])
    assert len(game.discriminator._graphs.functions) == 2  # of gradients, and of losses


def test_spectral_norms_are_one():
    from tutorial_dl.replica.keras_spectral import SpectralConv2D, normalised

    kernel = np.random.default_rng(0).normal(size=(3, 3, 4, 8)).astype(np.float32)
    found = np.linalg.norm(
        np.asarray(normalised(keras.ops.convert_to_tensor(kernel))).reshape(36, 8), 2
    )
    assert 1 <= found < 1.1  # power iteration stops below the norm
    layer = SpectralConv2D(8, 3, padding="same")
    x = np.random.default_rng(1).normal(size=(2, 5, 5, 4)).astype(np.float32)
    layer.build(x.shape)
    layer.kernel.assign(kernel)
    plain = layers.Conv2D(8, 3, padding="same")
    plain.build(x.shape)
    plain.kernel.assign(normalised(layer.kernel))
    np.testing.assert_allclose(layer(x), plain(x), rtol=1e-4, atol=1e-5)


def small_digits():
    digits = data.digits()
    return data.Dataset("digits", digits.train.rows(slice(70)), digits.validation, 10)


@pytest.mark.parametrize("name", ["digits-gan", "digits-conv-gan"])
def test_digits_gans(name):
    dataset = small_digits()
    game, again = (models.build(name, dataset, seed=3) for _ in range(2))
    for side, its in zip(game.sides, again.sides, strict=True):
        np.testing.assert_array_equal(side.parameters, its.parameters)
    other = models.build(name, dataset, seed=4)
    assert not np.array_equal(game.generator.parameters, other.generator.parameters)
    asked = np.arange(20) % 10
    made = game.sample(asked, 20)
    assert made.shape == (20, 8, 8, 1) and made.min() >= 0 and made.max() <= 1
    assert not np.array_equal(made[0], game.sample((asked + 1) % 10, 20)[0])  # it heeds the class
    one = game.round(numbered(dataset).train.take(slice(0, 16)), 0, 0)
    found = game.discriminator.losses(one)
    assert found["class"] == pytest.approx(np.log(10), abs=1.0)  # it does not know them yet
    assert found["loss"] == pytest.approx(found["class"] + 2 * np.log(2), abs=1.5)


def test_small_shower_gan_begins_with_the_means_of_the_data(capfd):
    from tutorial_dl.data import showers
    from tutorial_dl.quality import showers as quality

    dataset = showers.small_showers(600)
    game = models.build("shower-gan", dataset)
    x, y = dataset.validation.inputs, dataset.validation.targets
    made = game.sample(y, len(y))
    assert made.shape == x.shape and made.min() == 0
    assert made[made > 0].min() >= dataset.train.inputs[dataset.train.inputs > 0].min() * 0.9999
    assert quality.response(made, y[:, None].mean())[0] > 0.5
    assert quality.profile_error(made, x) < 0.3
    one = game.round(numbered(dataset).train.take(slice(0, 16)), 0, 0)
    for side in game.sides:
        loss, _ = side.compute_gradient((one, ()))
        assert np.isfinite(loss) and side.gradient_is_finite and side.gradient.any()
    assert {"loss", "energy", "sum"} <= game.generator.losses(one).keys()
    said = [line for line in capfd.readouterr().err.splitlines() if ".cc:" in line]
    assert not said  # TensorFlow can't fuse a part of this discriminator's graph, and says so


def test_spread_of_the_response_falls_with_energy_as_in_the_data():
    """From showers of known resolution, 10% at 100 GeV and falling as 1 / sqrt(E)."""
    from tutorial_dl.models.shower_gans import Means, fitted_spread

    random, n = np.random.default_rng(1), 20_000
    energies = random.uniform(10, 500, n)
    law = 0.1 * (energies / 100) ** -0.5
    x = (
        np.full((n, 4, 2, 2), 1 / 16)
        * (energies * (1 + law * random.standard_normal(n)))[:, None, None, None]
    )
    found = Means(x, energies).spread
    np.testing.assert_allclose(found, [np.log(0.1), -0.5], rtol=0.02)
    normal = random.standard_normal((n, 2)) * [3.0, 0.0]  # the same at all energies; always 0
    spread = fitted_spread(normal, np.log(energies / 100))
    np.testing.assert_allclose(spread[:, 0], [np.log(3), 0], atol=0.03)
    assert np.isfinite(spread).all()


def test_features_that_the_discriminator_sees():
    """Against the same quantities in numpy, of showers that fill all layers."""
    from tutorial_dl.models.shower_gans import features
    from tutorial_dl.quality import showers as quality

    random = np.random.default_rng(0)
    x = random.exponential(3, (4, 3, 5, 5)).astype(np.float32)
    y = np.full(4, 300, np.float32)
    found = np.asarray(
        features(keras.ops.convert_to_tensor(x), keras.ops.convert_to_tensor(y), 1e-3)
    )
    expected = quality.features(x, y)
    parts = np.split(found[:, :-1], 6, axis=1)
    np.testing.assert_allclose(np.exp(parts[0]), expected["layer energy"] + 1e-4, rtol=1e-4)
    for part, name in zip(parts[1:5], ("centre x", "width x", "centre y", "width y"), strict=True):
        np.testing.assert_allclose(5 * part, expected[name], atol=0.02)
    np.testing.assert_allclose(np.exp(found[:, -1:]), expected["energy ratio"] + 1e-3, rtol=1e-4)


USERS = """
import keras
from keras import layers

def generator():
    noise = keras.Input((4,))
    return keras.Model(noise, layers.Reshape((8, 8, 1))(layers.Dense(64)(noise)))

def discriminator():
    x = keras.Input((8, 8, 1))
    return keras.Model(x, layers.Dense(1)(layers.Flatten()(x)))

class Both(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = generator(), discriminator()

def both():
    return Both()
"""


def test_models_of_a_users_own(tmp_path):
    file = tmp_path / "users_gan.py"
    file.write_text(USERS)
    dataset = small_digits()
    for spec in (f"{file}:generator,{file}:discriminator", f"{file}:both"):
        models.check(spec)
        game = models.build(spec, dataset)
        assert game.noise == 4 and game.sample((), 3).shape == (3, 8, 8, 1)
    with pytest.raises(ValueError, match=r"expected curve, .*one-dimensional-gan, digits-gan"):
        models.check("generator,discriminator")


def test_misfits_are_refused():
    from tutorial_dl.replica.keras_gan import KerasGan

    noise, x = keras.Input((4,)), keras.Input((3,))
    generator = keras.Model(noise, layers.Dense(3)(noise))
    judge = keras.Model(x, layers.Dense(1)(x))
    for parts, rules, complaint in (
        ((generator, keras.Model(noise, layers.Dense(1)(noise))), None,
         r"makes samples of shape \(3,\), the discriminator takes \(4,\)"),
        ((generator, keras.Model(x, {"real": layers.Dense(1)(x)})), None, "no 'score'"),
        ((generator, judge), Rules(auxiliary={"class": 1.0}), "'class': the discriminator has"),
        ((keras.Model(noise, layers.BatchNormalization()(layers.Dense(3)(noise))), judge), None,
         "must not have moving statistics"),
        ((lambda: None, judge), None, "the generator must be a keras.Model"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=complaint):
            KerasGan(*parts, rules)
    for name, dataset in (("digits-gan", data.curve()), ("shower-gan", data.digits())):
        with pytest.raises(ValueError, match=f"model '{name}' makes"):
            models.build(name, dataset)
    with pytest.raises(ValueError, match="'one-dimensional-gan' makes numbers"):
        models.build("one-dimensional-gan", data.digits())


def full_size(steps):
    """The GAN of 25^3 showers on all ranks; returns the growth of memory in the last 2/3, bytes.

    One step is compared with that of one process; others are only to leave no memory behind.
    """
    from memory import proportional

    from numba_kernels.team.team import Team
    from tutorial_dl.data import showers
    from tutorial_dl.models.shower_gans import shower_gan
    from tutorial_dl.replica.consistency import check_same_weights
    from tutorial_dl.training.gan import gan_trainer

    team, sizes = Team(), []
    dataset = replace(showers.showers(4, seed=1), validation=None)

    class Looks(Callback):
        def on_step_end(self, trainer, loss, samples):
            if trainer.steps in (steps // 3, steps):
                sizes.append(proportional(os.getpid()))

    def trained(strategy, epochs, *callbacks, **its):
        game = shower_gan(dataset)
        # (Plain descent, so that the comparison is not of signs; it would not last 300 steps)
        rule = {"optimizer": "momentum", "rates": (1e-3, 1e-3)} if steps == 1 else {}
        trainer = gan_trainer(
            game, dataset, strategy, batch_size=4, progress=False, watch=False,
            callbacks=callbacks, **rule, **its,
        )  # fmt: skip
        before = [side.parameters.copy() for side in game.sides]
        trainer.fit(epochs)
        assert game.name == "shower-gan" and dataset.inputs_shape == (25, 25, 25)
        for side, old in zip(game.sides, before, strict=True):
            check_same_weights(trainer.team, side)
            assert np.isfinite(side.parameters).all() and (side.parameters != old).any()
        return [side.parameters - old for side, old in zip(game.sides, before, strict=True)]

    moves = trained("synchronous", steps, Looks(), team=team)
    if steps == 1 and team.rank == 0:
        for mine, alone in zip(moves, trained("serial", 1), strict=True):
            np.testing.assert_allclose(mine, alone, rtol=1e-3, atol=1e-5 * np.abs(alone).max())
    return sizes[-1] - sizes[0]


def one_step():
    full_size(1)


@pytest.mark.thorough
def test_a_step_of_the_full_size_on_two_ranks(on_ranks):
    on_ranks(2, one_step, keras=True)


def many_steps(steps, limit):
    grown = full_size(steps)
    assert grown < limit, f"{grown / 1e6:.1f} MB more after {steps} steps than after a third"
