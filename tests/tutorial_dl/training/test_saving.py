"""The trained model in a file: Keras's own format, or arrays."""

import numpy as np
import pytest

from tutorial_dl import Trainer, callbacks, data
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
        np.testing.assert_array_equal(found[one.name], one.of(trainer.replica.parameters))
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


def by_ranks(folder):
    import keras

    from tutorial_dl import models

    digits = data.digits()
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


@pytest.mark.xdist_group("keras")
def test_keras_models_of_several_ranks(on_ranks, tmp_path):
    on_ranks(3, by_ranks, str(tmp_path), keras=True)
