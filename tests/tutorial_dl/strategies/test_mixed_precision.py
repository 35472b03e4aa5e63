"""Mixed precision and loss scaling, compared with Keras's own rule and training."""

import numpy as np
import pytest
from rank_tests import with_ranks

from numba_kernels import PeerError
from numba_kernels.optimizers import SGD
from tutorial_dl import Team, Trainer, data, replica, strategies
from tutorial_dl.replica import Replica, Traits
from tutorial_dl.replica.joining import join
from tutorial_dl.strategies.loss_scale import LEAST, LossScale, loss_scale_of
from tutorial_dl.training import TrainingError

# The pass that joins gradients


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_join_copies_scales_and_finds_what_is_not_finite(dtype):
    random = np.random.default_rng(0)
    sizes, offsets = np.array([5000, 1, 0, 2049, 17]), np.array([0, 5008, 5024, 5024, 7088])
    sources = [random.normal(size=n).astype(dtype) for n in sizes]
    sources[0][7] = np.finfo(dtype).max  # finite
    sources[3][5] = -0.0
    addresses = np.array([s.ctypes.data for s in sources])
    for factor in (1.0, 0.25):
        flat = np.full(7110, 7, dtype)
        assert join(flat, offsets, addresses, sizes, factor)
        expected = np.full(7110, 7, dtype)
        for first, source in zip(offsets, sources, strict=True):
            expected[first : first + source.size] = source * dtype_of(factor, dtype)
        np.testing.assert_array_equal(flat, expected)
    for part, place in ((0, 0), (0, 4999), (1, 0), (3, 2048), (4, 16)):
        for value in (np.nan, -np.nan, np.inf, -np.inf):
            kept, sources[part][place] = sources[part][place], value
            assert not join(flat, offsets, addresses, sizes)
            sources[part][place] = kept
    for apart in ((0, 7110), (100, 5024), (5000, 5010), (4096, 7110), (0, 1), (7105, 7110)):
        flat = np.full(7110, 7, dtype)
        assert join(flat, offsets, addresses, sizes, 0.25, apart)
        written = np.where(
            (np.arange(7110) < apart[0]) | (np.arange(7110) >= apart[1]), expected, 7
        )
        np.testing.assert_array_equal(flat, written)
        sources[3][1], kept = np.nan, sources[3][1]
        assert not join(flat, offsets, addresses, sizes, 0.25, apart)
        sources[3][1] = kept


def dtype_of(factor, dtype):
    return np.dtype(dtype).type(factor)


# The rule


@pytest.mark.xdist_group("keras")
def test_the_rule_is_keras_s():
    import keras
    import tensorflow as tf

    random = np.random.default_rng(1)
    theirs = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.5), initial_scale=64.0, dynamic_growth_steps=3
    )
    variable = keras.Variable([1.0, 2.0])
    theirs.build([variable])
    ours, w = LossScale(64, growth_steps=3), np.array([1.0, 2.0], "float32")
    scales = []
    for _ in range(60):
        finite = random.random() < 0.8
        g = random.normal(size=2).astype("float32") if finite else np.array([np.inf, 1], "float32")
        theirs.apply([tf.constant(g * ours.scale)], [variable])
        if finite:
            w -= np.float32(0.5) * g
        ours.update(finite)
        assert ours.scale == float(theirs.dynamic_scale)
        assert ours.good == int(theirs.step_counter)
        np.testing.assert_allclose(variable.numpy(), w, rtol=1e-6)
        scales.append(ours.scale)
    assert len(set(scales)) > 3  # the scale went up and down


def test_endless_overflow_is_an_error():
    scale = LossScale(1.0)
    with pytest.raises(FloatingPointError, match=f"not even at a loss scale of {LEAST}"):
        for _ in range(100):
            scale.update(False)
    fixed = LossScale(8, dynamic=False)
    fixed.update(False)
    assert fixed.scale == 8
    kept = LossScale(8)
    kept.update(True)
    other = LossScale()
    other.values = kept.values
    assert (other.scale, other.good) == (8, 1)


class Scalable(Replica):
    loss_scale, traits = 1.0, Traits(computes_in_float16=True, scales_loss=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3.0, "loss scale must be a power of 2, got 3.0"),
        (0, "loss scale must be a power of 2, got 0"),
        (float("nan"), "loss scale must be a power of 2, got nan"),
        (True, "loss scale must be 'auto', 'dynamic', a power of 2 or None, got True"),
        ("fast", "loss scale must be 'auto', 'dynamic', a power of 2 or None, got 'fast'"),
    ],
)
def test_scales_that_are_none(given, message):
    with pytest.raises(ValueError, match=message):
        loss_scale_of(given, Scalable())


def test_which_scale():
    assert loss_scale_of("auto", Scalable()).dynamic
    assert loss_scale_of("auto", Replica()) is None and loss_scale_of(None, Scalable()) is None
    fixed = loss_scale_of(1024, Scalable())
    assert fixed.scale == 1024 and not fixed.dynamic
    with pytest.raises(ValueError, match="loss scale 'dynamic': only Keras models support"):
        loss_scale_of("dynamic", Replica())
    with pytest.raises(ValueError, match="growth_steps must be at least 1, got 0"):
        LossScale(growth_steps=0)


# Training

STEPS, BATCH = 8, 12
LARGE = (2, 5)  # in these steps, one sample's gradient overflows at any scale


def network(policy):
    import keras

    keras.mixed_precision.set_dtype_policy(policy)
    keras.utils.set_random_seed(7)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(16, "tanh"), layers.Dense(2, activation="linear")]
    )
    keras.mixed_precision.set_dtype_policy("float32")
    return model


def batches(large):
    random = np.random.default_rng(3)
    for step in range(STEPS):
        x = random.normal(size=(BATCH, 5)).astype("float32")
        y = random.normal(size=(BATCH, 2)).astype("float32")
        if large and step in LARGE:
            y[-1] = 3e4  # in the last rank's share
        yield x, y


def of_keras(policy, large, scale):
    """[(loss, scale, weights) after each step] of Keras's own training on whole batches."""
    import keras

    model, rule = network(policy), keras.optimizers.SGD(0.05)
    if scale:
        rule = keras.optimizers.LossScaleOptimizer(rule, scale, dynamic_growth_steps=2)
    model.compile(rule, "mse", jit_compile=False)
    for batch in batches(large):
        loss = model.train_on_batch(*batch)
        now = float(rule.dynamic_scale) if scale else None
        yield float(loss), now, np.concatenate([w.ravel() for w in model.get_weights()])


def of_ours(policy, strategy, scale, large):
    model = network(policy)
    model.compile(loss="mse")
    one = replica.of(model)
    strategy.loss_scale = scale
    strategy.attach(one, SGD(0.05))
    for batch in batches(large):
        share = data.Data(*batch).take(data.share(BATCH, strategy.team.rank, strategy.team.size))
        loss, samples = strategy.step(share)
        assert samples == BATCH
        now = scale and scale.scale
        yield loss, now, np.concatenate([s.view(one.parameters).ravel() for s in one.segments])


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
@with_ranks(2, keras=True)
def test_training_on_two_ranks():
    team = Team()
    cases = [("mixed_float16", True, 64.0), ("mixed_float16", False, 2.0**13)]
    for policy, large, scale in [*cases, ("mixed_bfloat16", False, None)]:
        expected = list(of_keras(policy, large, scale))
        ways = [strategies.Synchronous(team), strategies.Synchronous(team, "ring")]
        for strategy in [*ways, strategies.Serial()]:
            ours = None if scale is None else LossScale(scale, growth_steps=2)
            before = None
            found = of_ours(policy, strategy, ours, large)
            for step, (a, b) in enumerate(zip(found, expected, strict=True)):
                assert a[1] == b[1], f"step {step}: scale {a[1]}, Keras's is {b[1]}"
                np.testing.assert_allclose(a[0], b[0], rtol=0.02)
                # Shares are rounded differently in half precision, which has 11 or 8 bits.
                limit = 2e-3 if policy == "mixed_float16" else 2e-2
                np.testing.assert_allclose(a[2], b[2], atol=limit, err_msg=f"{policy} {step}")
                if large and step in LARGE:
                    np.testing.assert_array_equal(a[2], before)  # skipped, on all ranks
                elif before is not None:
                    assert not np.array_equal(a[2], before)
                before = a[2]
            assert np.ptp(team.allgather(before), axis=0).max() == 0
            if scale is not None:
                assert strategy.save()[0]["loss_scale"] == ours.values
    trainers(team)


def trainers(team):
    """The Trainer scales the loss by itself for a float16 model, also with accumulation."""
    x, y = next(batches(False))
    y[0] = 3e4  # one piece of one rank's batch overflows
    part = data.Data.of(x, y)
    whole = data.Dataset("large", part, part)
    for accumulate in (1, 3):
        model = network("mixed_float16")
        model.compile(loss="mse")
        options = dict(batch_size=BATCH, progress=False, team=team, accumulate=accumulate)
        trainer = Trainer(model, whole, "synchronous", "sgd", **options)
        before = trainer.replica.parameters.copy()
        history = trainer.fit(1)
        assert trainer.strategy.loss_scale.values == [2.0**14, 0]
        np.testing.assert_array_equal(trainer.replica.parameters, before)
        assert np.isfinite(history.last["loss"])
        assert {v.dtype for v in model.trainable_weights} == {"float32"}
    model = network("mixed_float16")
    model.compile(loss="mse")
    either = TrainingError, PeerError  # the loss of this rank's sample, or of the other rank's
    with pytest.raises(either, match="not finite at a loss scale of 4096"):
        Trainer(model, whole, "synchronous", loss_scale=4096, **options).fit(1)
