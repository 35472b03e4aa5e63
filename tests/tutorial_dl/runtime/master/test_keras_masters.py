"""Keras models under a master: statistics, masks and half precision; a CNN that learns."""

import numpy as np
import pytest

from tutorial_dl import Trainer, data, models, strategies

pytestmark = pytest.mark.xdist_group("keras")


def with_statistics(policy):
    """A compiled model with batch normalisation and dropout."""
    import keras

    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Flatten(),
                keras.layers.Dense(64),
                keras.layers.BatchNormalization(momentum=0.9),
                keras.layers.ReLU(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(10, dtype="float32"),
            ]
        )
    finally:
        keras.config.set_dtype_policy("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"])
    return model


def each_rank(everything):
    """everything: each precision with each rule, as `make soak` does."""
    digits = data.load("digits")

    def ends_alike(trainer, least):
        team, replica = trainer.team, trainer.replica
        for vector in (replica.parameters, np.asarray(replica.state, np.float64)):
            rows = team.allgather(vector.copy()) if vector.size else np.zeros((team.size, 1))
            assert (rows == rows[0]).all()
        row = trainer.history.last
        assert max(trainer.history.column("val_accuracy")) >= least, row
        # All ranks hold the weights that were validated last.
        np.testing.assert_allclose(trainer.evaluate()["loss"], row["val_loss"], rtol=1e-4)

    for number, policy in enumerate(("mixed_bfloat16", "float32", "mixed_float16")):
        both = (
            (strategies.Downpour(), 0.003),
            (strategies.ElasticAveraging(momentum=0.9, synchronous=True), 0.02),
        )
        for rule, rate in both if everything else both[number % 2 : number % 2 + 1]:
            trainer = Trainer(
                with_statistics(policy), digits, rule, progress=False, learning_rate=rate
            )
            before = np.copy(trainer.replica.state)
            trainer.fit(4)
            assert np.abs(trainer.replica.state - before).max() > 0.1
            assert (rule.loss_scale is not None) == (policy == "mixed_float16")
            ends_alike(trainer, 0.85)
    trainer = Trainer(models.build("cnn", digits, seed=0), digits, "downpour", progress=False)
    trainer.fit(6)
    ends_alike(trainer, 0.93)  # how stale its gradients are is a matter of time


def test_keras_models_learn_under_a_master(on_ranks):
    on_ranks(3, each_rank, False, timeout=300, keras=True)
