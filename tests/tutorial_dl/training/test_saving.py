"""The trained model in a file: Keras's own format, or arrays."""

import json
import warnings

import numpy as np
import pytest
from counted_runs import some_digits
from rank_tests import with_ranks

from numba_kernels import optimizers
from tutorial_dl import Team, Trainer, callbacks, data, models, strategies
from tutorial_dl.replica import CurveReplica, base


def curve():
    x = np.linspace(-1, 1, 40, dtype=np.float32)
    part = data.Data.of(x, x**2)
    return data.Dataset("curve", part, part)


def trained(**options):
    trainer = Trainer(CurveReplica(3), curve(), "serial", "sgd", progress=False, **options)
    trainer.fit(2)
    return trainer


def test_arrays_by_name(tmp_path):
    trainer = trained()
    trainer.save(tmp_path / "curve.npz")
    found = np.load(tmp_path / "curve.npz")
    assert set(found) == {one.name for one in trainer.replica.segments}
    for one in trainer.replica.segments:
        np.testing.assert_array_equal(found[one.name], one.view(trainer.replica.parameters))
    with pytest.raises(ValueError, match=r"'curve.keras': the name must end in .npz"):
        trainer.save("curve.keras")
    assert [p.name for p in tmp_path.iterdir()] == ["curve.npz"]


def test_a_file_is_replaced_at_once_or_not_at_all(tmp_path):
    file, replica = tmp_path / "m.npz", CurveReplica(3)
    file.write_text("before")
    with pytest.raises(OSError, match="disk is full"), base.written(replica, file) as part:
        part.write_text("half")
        raise OSError("disk is full")
    assert file.read_text() == "before" and list(tmp_path.iterdir()) == [file]
    with base.written(replica, file) as part:
        part.write_text("after")
        assert file.read_text() == "before"
    assert file.read_text() == "after" and list(tmp_path.iterdir()) == [file]


def test_the_best_epoch_is_kept(tmp_path):
    best = callbacks.SaveBest(tmp_path / "best.npz")
    trainer = trained(callbacks=[best], learning_rate=0.1)
    for metric, value, kept in ((-5.0, 1.0, True), (-4.0, 2.0, False), (-6.0, 3.0, True)):
        trainer.replica.parameters[:] = value
        best.on_epoch_end(trainer, {"val_loss": metric})
        (saved,) = np.load(tmp_path / "best.npz").values()
        assert (saved == value).all() == kept
    again = callbacks.SaveBest(tmp_path / "best.npz")
    again.restore(*best.save())
    assert again.best == 6.0
    with pytest.raises(ValueError, match=r"must end in .npz"):
        trained(callbacks=[callbacks.SaveBest("best.keras")])


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
@with_ranks(3, keras=True)
def test_keras_models_of_several_ranks(folder):
    import keras

    digits = some_digits(200, 100)
    for number, strategy in enumerate(("synchronous", "downpour")):
        best = callbacks.SaveBest(f"{folder}/best-{number}.keras", "val_accuracy")
        trainer = Trainer(
            models.build("cnn", digits, seed=0), digits, strategy, progress=False, callbacks=[best]
        )
        history = trainer.fit(2)
        for ending in (".keras", ".h5"):
            file = f"{folder}/m-{number}{ending}"
            trainer.save(file)
            x = digits.validation.inputs[:9]
            model = keras.saving.load_model(file)
            np.testing.assert_allclose(
                np.asarray(model(x)), trainer.replica.predict(x), rtol=1e-6, atol=1e-7
            )
        kept = keras.saving.load_model(f"{folder}/best-{number}.keras")
        x, y = digits.validation.take(slice(None))
        accuracy = np.mean(np.argmax(kept(x), -1) == y)
        assert accuracy == pytest.approx(max(history.column("val_accuracy")), abs=1e-6)


# What has trained a model is in its file -------------------------------------------------------

BATCH, SAMPLES = 16, 50


def signs():
    dice = np.random.default_rng(5)
    x = dice.standard_normal((SAMPLES, 4)).astype(np.float32)
    y = (x[:, :1] * x[:, 1:2] > 0).astype(np.float32)
    return data.Dataset("signs", data.Data.of(x, y), data.Data.of(x[::-1], y[::-1]))


def compiled(optimizer):
    import keras

    keras.utils.set_random_seed(2)
    layers = [keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1, "sigmoid")]
    model = keras.Sequential(layers)
    model.compile(optimizer, "binary_crossentropy", run_eagerly=True)
    return model


def fitted(model, epochs):
    """Train by Keras alone, with the batches of these epochs in our order."""
    batches = data.Batches(signs().train, BATCH, seed=5)
    for epoch in epochs:
        for x, y in batches.epoch(epoch):
            model.train_on_batch(x, y)


def loaded(file):
    """Load a model by Keras; raise what it warns of."""
    import keras

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return keras.saving.load_model(file)


def optimizers_of_keras():
    from keras import optimizers as those

    rates = those.schedules.ExponentialDecay(0.5, 3, 0.7)
    return {
        "decaying": those.SGD(rates, momentum=0.9, nesterov=True, global_clipnorm=0.1),
        "plain": those.SGD(0.1),
        "adam": those.Adam(0.05, epsilon=1e-3),
        "adamw": those.AdamW(0.05, epsilon=1e-3, weight_decay=0.1),
        "nadam": those.Nadam(0.05, epsilon=1e-3),
        "rmsprop": those.RMSprop(0.01, momentum=0.5, centered=True, epsilon=1e-3),
        "adagrad": those.Adagrad(0.1),
        "adadelta": those.Adadelta(1.0, epsilon=1e-3),
        "lion": those.Lion(0.01, weight_decay=0.01),
        "by Keras": those.Adam(0.05, epsilon=1e-3, amsgrad=True, clipnorm=0.1),
    }


@pytest.mark.xdist_group("keras")
@with_ranks(2, keras=True)
def test_a_saved_model_goes_on_in_plain_keras(folder):
    """Two epochs on two ranks and a third one by Keras equal three by Keras."""
    team = Team()
    for number, (name, optimizer) in enumerate(optimizers_of_keras().items()):
        model = compiled(optimizer)
        before = model.optimizer, model._compile_config
        trainer = Trainer(model, signs(), batch_size=BATCH, seed=5, team=team, progress=False)
        trainer.fit(2)
        if name == "plain":  # Keras takes the optimizer out of what it keeps for the next file
            trainer.save(f"{folder}/m{number}.h5")
        trainer.save(f"{folder}/m{number}.keras")
        assert (model.optimizer, model._compile_config) == before
        if team.rank == 0:
            alone, again = (
                compiled(optimizers_of_keras()[name]),
                loaded(f"{folder}/m{number}.keras"),
            )
            assert type(again.optimizer) is type(optimizer)
            assert int(again.optimizer.iterations) == trainer.steps
            fitted(alone, range(3))
            fitted(again, [2])
            for mine, theirs in zip(again.get_weights(), alone.get_weights(), strict=True):
                np.testing.assert_allclose(mine, theirs, atol=3e-6, rtol=0, err_msg=name)
        team.barrier()


def other_optimizers(folder):
    """What was used is saved, not what was compiled; each file loads without a warning."""
    team, found = Team(), {}
    for number, (strategy, optimizer) in enumerate((
        ("synchronous", optimizers.Adam(0.03)), ("synchronous", "lamb"),
        ("downpour", "adam"), ("elastic_averaging", "sgd"), ("hogwild", "adam"),
    )):  # fmt: skip
        trainer = Trainer(
            compiled("adagrad"), signs(), strategies.get(strategy, team), optimizer,
            batch_size=BATCH, progress=False, clip_norm=0.5,
        )  # fmt: skip
        trainer.fit(2)
        trainer.save(f"{folder}/o{number}.keras")
        if team.rank == 0:
            theirs = loaded(f"{folder}/o{number}.keras").optimizer
            averages = [v.numpy() for v in theirs.variables if v.ndim]
            known = bool(averages and np.any(averages[0]))
            found[f"{strategy} {number}"] = [
                type(theirs).__name__, round(float(theirs.learning_rate), 6),
                theirs.global_clipnorm, int(theirs.iterations), known,
            ]  # fmt: skip
    if team.rank == 0:
        print(json.dumps(found))


@pytest.mark.xdist_group("keras")
def test_the_optimizer_that_was_used_is_saved(on_ranks, tmp_path):
    found = json.loads(on_ranks(2, other_optimizers, str(tmp_path), keras=True))
    assert found["synchronous 0"] == ["Adam", 0.03, 0.5, 8, True]
    assert found["synchronous 1"] == ["Adagrad", 0.001, None, 0, True]  # Keras has no such LAMB
    assert found["downpour 2"] == ["Adam", 0.001, 0.5, 8, True]  # one worker: 4 batches an epoch
    assert found["elastic_averaging 3"][:3] == ["SGD", 0.01, 0.5]
    assert found["hogwild 4"][0] == "Adam" and found["hogwild 4"][4]
