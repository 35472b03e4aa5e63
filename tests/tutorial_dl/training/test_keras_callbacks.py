"""Keras's callbacks in a Trainer do on two ranks what they do in `fit`."""

import csv
from pathlib import Path

import numpy as np
import pytest
from as_fit import same_weights
from rank_tests import with_ranks

from tutorial_dl import Team, Trainer, models
from tutorial_dl.data import dataset_of
from tutorial_dl.training import schedules

pytestmark = pytest.mark.xdist_group("keras")

SAMPLES, EPOCHS = 40, 12


def data():
    dice = np.random.default_rng(5)
    x = dice.standard_normal((SAMPLES, 4)).astype(np.float32)
    return (x, x[:, :1] * 2 - x[:, 1:2] ** 2), (x[::2] + 0.3, x[::2, :1])


def compiled():
    import keras

    keras.utils.set_random_seed(2)
    model = keras.Sequential([
        keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1),
    ])  # fmt: skip
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", metrics=["mae"])
    return model


def deciding():
    """They change the rate and stop within these epochs."""
    import keras

    of = keras.callbacks
    return [
        of.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=0.2, factor=0.5),
        of.EarlyStopping(monitor="val_loss", patience=4, min_delta=0.2, restore_best_weights=True),
    ]


def halving(epoch, rate):
    return rate / 2 if epoch == 2 else rate


def writing(folder, said):
    import keras

    of = keras.callbacks
    return [
        of.CSVLogger(f"{folder}/log.csv"),
        of.ModelCheckpoint(f"{folder}/best.keras", monitor="val_loss", save_best_only=True),
        of.TensorBoard(f"{folder}/board"),
        of.LambdaCallback(
            on_epoch_end=lambda epoch, logs: said.append((epoch, logs["val_mae"])),
            on_train_batch_end=lambda step, logs: said.append((step, logs["loss"])),
        ),
    ]


def by_fit(callbacks):
    (x, y), kept = data()
    model = compiled()
    model.fit(x, y, SAMPLES, EPOCHS, verbose=0, callbacks=callbacks, validation_data=kept)
    return model


def by_trainer(callbacks, strategy="synchronous"):
    model = compiled()
    options = dict(batch_size=SAMPLES, progress=False, callbacks=callbacks)
    trainer = Trainer(model, data(), strategy, **options)
    trainer.fit(EPOCHS)
    return model, trainer


@with_ranks(2, keras=True)
def test_keras_callbacks_on_two_ranks(folder):
    import keras

    expected = by_fit(deciding())
    model, trainer = by_trainer(deciding())
    assert trainer.stopped and 4 < len(trainer.history.epochs) < EPOCHS
    rate = float(expected.optimizer.learning_rate)
    assert trainer.strategy.optimizer.learning_rate == pytest.approx(rate) and rate < 0.1
    same_weights(model, expected, 1e-5)

    expected = by_fit([keras.callbacks.LearningRateScheduler(halving)])
    model, trainer = by_trainer([keras.callbacks.LearningRateScheduler(halving)])
    assert trainer.strategy.optimizer.learning_rate == pytest.approx(0.05)
    same_weights(model, expected, 1e-5)

    for again in (False, True):
        in_parts(f"{folder}/run", again)

    said = []
    model, trainer = by_trainer(writing(folder, said))
    trainer.team.barrier()
    column = trainer.history.column("val_mae")
    if Team().rank:
        assert not said
        return
    assert said[1::2] == list(enumerate(column)) and [step for step, _ in said[::2]] == [0] * EPOCHS
    with open(f"{folder}/log.csv") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_mae"]) for row in rows] == pytest.approx(column)
    best = keras.saving.load_model(f"{folder}/best.keras")
    (_, kept), lowest = data(), min(trainer.history.column("val_loss"))
    assert best.evaluate(*kept, verbose=0)[0] == pytest.approx(lowest, rel=1e-5)
    assert list(Path(folder, "board").rglob("events.out.tfevents.*"))


def in_parts(folder, resumed):
    """A rate that falls each epoch: in one `fit`, in several, and resumed from a checkpoint."""
    import keras

    def trainer_of(**more):
        falls = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 * rate)
        options = dict(batch_size=SAMPLES, progress=False, callbacks=[falls])
        return Trainer(compiled(), data(), **options, **more)

    whole, parts = trainer_of(), trainer_of(checkpoint=folder) if resumed else trainer_of()
    whole.fit(4)
    if resumed:
        parts.fit(2)
        parts = trainer_of(checkpoint=folder)
        assert parts.resume()
        parts.fit(2)
    else:
        for _ in range(4):
            parts.fit(1)
    np.testing.assert_allclose(parts.replica.parameters, whole.replica.parameters, atol=1e-6)


@pytest.mark.thorough
@with_ranks(2, keras=True)
def test_with_a_master_they_run_beside_it():
    import keras

    stops = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, min_delta=9.0)
    _, trainer = by_trainer([stops], "downpour")
    assert len(trainer.history.epochs) == 3
    with pytest.raises(ValueError, match="ReduceLROnPlateau can't be used together with a master"):
        by_trainer(deciding()[:1], "downpour")


def test_others_are_refused_by_name(tmp_path):
    import keras

    class OfAUser(keras.callbacks.Callback):
        pass

    of = keras.callbacks
    for callback, words in (
        (OfAUser(), "callback OfAUser derives from keras.callbacks.Callback"),
        (of.BackupAndRestore(str(tmp_path)), r"BackupAndRestore can't be used here: use Trainer\("),
        (of.RemoteMonitor(), "RemoteMonitor can't be used here: use one of EarlyStopping"),
    ):
        with pytest.raises(TypeError, match=words):
            Trainer(compiled(), data(), callbacks=[callback])
    trainer = Trainer(
        compiled(), data(), callbacks=deciding(), progress=False,
        learning_rate=schedules.cosine(0.1, 9),
    )  # fmt: skip
    with pytest.raises(ValueError, match="together with a learning rate schedule"):
        trainer.fit(1)
    dense = dataset_of(data())
    trainer = Trainer(models.dense(dense), dense, callbacks=deciding(), progress=False)
    with pytest.raises(ValueError, match="needs a Keras model"):
        trainer.fit(1)
