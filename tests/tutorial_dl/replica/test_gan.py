"""Games: gradients against differences, noise by the number of a sample, what is refused."""

import numpy as np
import pytest
from scipy import stats

from tutorial_dl import data
from tutorial_dl.replica import gan
from tutorial_dl.replica.gan import Round, Rules, draws, numbered
from tutorial_dl.replica.one_dimensional_gan import OneDimensionalGan

FORMS = [
    Rules(), Rules(smoothing=0.1, flips=0.3), Rules("wasserstein"), Rules("wasserstein", penalty=0),
]  # fmt: skip


def game_and_round(rules, spectral=False, n=7):
    game = OneDimensionalGan(5, rules, spectral, seed=3, dtype=np.float64)
    x = np.random.default_rng(1).normal(size=n)
    return game, Round(x, (), *draws(0, 2, np.arange(n), 1, np.float64))


@pytest.mark.parametrize("spectral", [False, True])
@pytest.mark.parametrize("rules", FORMS)
def test_gradients_are_those_of_the_losses(rules, spectral):
    game, one = game_and_round(rules, spectral)
    for side in game.sides:
        loss, samples = side.compute_gradient((one, ()))
        assert samples == 7 and loss == pytest.approx(side.losses(one)["loss"], rel=1e-12)
        found, step = side.gradient.copy(), 1e-6
        for i in range(side.parameters.size):
            kept, around = side.parameters[i], []
            for sign in (1, -1):
                side.parameters[i] = kept + sign * step
                around.append(side.losses(one)["loss"])
            side.parameters[i] = kept
            assert found[i] == pytest.approx((around[0] - around[1]) / (2 * step), abs=1e-7)


def test_losses_by_hand():
    """Against the formulas in gan.py, sample by sample."""
    game, one = game_and_round(Rules(smoothing=0.2, flips=0.3))
    score, made = (game.discriminator.function(x) for x in (one.x, game.generate(one.noise)))
    flipped = one.uniforms[:, 0] < 0.3
    assert flipped.any() and not flipped.all()
    p = [1 / (1 + np.exp(-s)) for s in (score, made)]
    t = np.where(flipped, 0, 0.8)
    expected = -np.mean(t * np.log(p[0]) + (1 - t) * np.log(1 - p[0]) + np.log(1 - p[1]))
    assert game.discriminator.losses(one)["loss"] == pytest.approx(expected, rel=1e-12)
    assert game.generator.losses(one)["loss"] == pytest.approx(-np.mean(np.log(p[1])), rel=1e-12)


def test_spectral_normalisation_bounds_the_slope():
    game, _ = game_and_round(Rules(), spectral=True)
    game.discriminator.parameters *= 50
    x = np.linspace(-4, 4, 1001)
    assert np.abs(game.discriminator.slope(x)).max() <= 1
    numeric = np.diff(game.discriminator.function(x)) / np.diff(x)
    middle = (x[1:] + x[:-1]) / 2
    np.testing.assert_allclose(numeric, game.discriminator.slope(middle), atol=1e-2)


def test_an_empty_share_has_no_gradient():
    game, one = game_and_round(Rules("wasserstein"))
    empty = Round(one.x[:0], (), one.noise[:0], one.uniforms[:0])
    for side in game.sides:
        side.gradient[:] = 1
        assert side.compute_gradient((empty, ())) == (0.0, 0) and not side.gradient.any()
        assert side.evaluate([(empty, ())]) == {"loss": 0.0, "samples": 0}


def test_noise_depends_on_seed_epoch_and_index_alone():
    noise, uniforms = draws(5, 3, np.arange(100), 4)
    for part in (np.arange(100)[1::3], np.arange(100)[::-1]):
        again, its = draws(5, 3, part, 4)
        np.testing.assert_array_equal(again, noise[part])
        np.testing.assert_array_equal(its, uniforms[part])
    for seed, epoch in ((6, 3), (5, 4), (5, gan.ALWAYS)):
        assert not (draws(seed, epoch, np.arange(100), 4)[0] == noise).any()
    noise, uniforms = draws(0, 0, np.arange(20_000), 2)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(uniforms.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1]) < 0.03


def test_samples_by_number():
    game = OneDimensionalGan(8)
    whole = game.sample((), 30, seed=2)
    again = game.sample((), 12, seed=2, batch_size=5)
    np.testing.assert_allclose(again, whole[:12], rtol=1e-5)


def test_what_is_refused():
    for options, complaint in (
        ({"loss": "hinge"}, "loss 'hinge': expected non_saturating or wasserstein"),
        ({"turns": "random"}, "turns 'random': expected alternating or simultaneous"),
        ({"discriminator_steps": 0}, "discriminator_steps must be at least 1, got 0"),
        ({"flips": 0.6}, "flips must be from 0 to below 0.5, got 0.6"),
        ({"loss": "wasserstein", "smoothing": 0.1}, "smoothing is for the non_saturating loss"),
        ({"average": 1.0}, "average must be from 0 to below 1, got 1"),
        ({"penalty": -1}, "penalty must be at least 0, got -1"),
    ):
        with pytest.raises(ValueError, match=complaint):
            Rules(**options)
    two = data.Data.of((np.ones(4), np.ones(4)), None)
    with pytest.raises(ValueError, match="'two': a GAN takes one array of samples"):
        numbered(data.Dataset("two", two, two))
    weighted = data.Data.of(np.ones(4), np.ones(4), np.ones(4))
    with pytest.raises(ValueError, match="without weights"):
        numbered(data.Dataset("weighted", weighted, weighted))
