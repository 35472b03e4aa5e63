"""A Keras network with moving statistics, dropout and a loss scale, killed and resumed."""

from pathlib import Path

import numpy as np
import pytest
from counted_runs import run_until, some_digits
from rank_tests import with_ranks

from tutorial_dl import Team, Trainer

pytestmark = pytest.mark.xdist_group("keras")


@with_ranks(2, keras=True)
def test_a_keras_network_goes_on(folder):
    """A resumed run has the same bits; dropout differs between ranks; predict is the model's."""
    from tutorial_dl.tensorflow_chatter import hide_tensorflow_chatter

    hide_tensorflow_chatter()
    import keras

    team = Team()
    digits = some_digits(203)

    def network(policy):
        keras.utils.set_random_seed(7)
        layers = keras.layers
        with_policy = {"dtype": policy}
        model = keras.Sequential([
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(30, "relu", **with_policy),
            layers.BatchNormalization(**with_policy),
            layers.Dropout(0.3, **with_policy),
            layers.Dense(10, **with_policy),
            layers.Activation("softmax", dtype="float32"),
        ])  # fmt: skip
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    for policy, pieces in (("float32", 1), ("mixed_float16", 2)):

        def trainer(policy=policy, pieces=pieces, **options):
            options |= dict(batch_size=20, progress=False, accumulate=pieces)
            return Trainer(network(policy), digits, team=team, **options)

        whole = trainer()
        whole.fit(3)
        place = Path(folder, policy)
        run_until(trainer(checkpoint=place, checkpoint_every=5), 17)
        resumed = trainer(checkpoint=place)
        assert resumed.resume() and resumed.steps == 15
        resumed.fit_to(3)
        one, other = whole.replica, resumed.replica
        np.testing.assert_array_equal(one.parameters, other.parameters)
        np.testing.assert_array_equal(one.state, other.state)
        np.testing.assert_array_equal(one.random, other.random)
        for name in ("loss", "accuracy", "val_loss", "val_accuracy"):  # of part of an epoch, too
            ours = resumed.history.column(name)
            np.testing.assert_allclose(ours, whole.history.column(name), rtol=1e-12)
        assert one.state.size == 60 and one.random.size == 2
        assert one.random[1] > (pieces - 0.5) * whole.steps  # one mask for each piece with samples
        if policy == "mixed_float16":
            assert whole.strategy.loss_scale.values == resumed.strategy.loss_scale.values
        seeds = team.allgather(one.random)
        assert len({row[0] for row in seeds}) == team.size

    inputs = digits.validation.inputs[:101]
    expected = whole.replica.model.predict(inputs, verbose=0)
    np.testing.assert_allclose(whole.predict(inputs), expected, rtol=1e-2, atol=1e-3)
