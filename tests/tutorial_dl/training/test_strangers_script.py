"""A script written for plain `fit` trains on three ranks after three of its lines have changed."""

import contextlib

import numpy as np
import pytest

pytestmark = pytest.mark.xdist_group("keras")

PLAIN = """
import keras
import numpy as np
from sklearn.datasets import load_digits

keras.utils.set_random_seed(7)
digits = load_digits()
x, y = (digits.images[..., None] / 16).astype("float32"), (digits.target == 8).astype("float32")
kept = x[900:1200], y[900:1200]
x, y = x[:600], y[:600]

# Augmentation: each image once more, moved by a pixel
x, y = np.concatenate([x, np.roll(x, 1, axis=2)]), np.concatenate([y, y])

model = keras.Sequential([
    keras.Input((8, 8, 1)),
    keras.layers.Conv2D(6, 3, activation="relu"),
    keras.layers.MaxPooling2D(),
    keras.layers.Flatten(),
    keras.layers.Dense(12, activation="relu", kernel_regularizer="l2"),
    keras.layers.Dense(1, activation="sigmoid"),
])
rates = keras.optimizers.schedules.CosineDecay(0.05, 160)
model.compile(
    keras.optimizers.SGD(rates, 0.9, global_clipnorm=1.0), "binary_crossentropy",
    metrics=[keras.metrics.AUC(name="auc")],
)
best = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_auc", mode="max",
                                       save_best_only=True)
options = dict(class_weight={0: 1, 1: 9}, callbacks=[best], shuffle=False)
model.fit(x, y, 100, 12, validation_data=kept, **options)
np.save("weights.npy", np.concatenate([w.ravel() for w in model.get_weights()]))
"""
CHANGES = {  # in three lines
    "import numpy as np": "import numpy as np; from tutorial_dl import Team, Trainer",
    "model.fit(x, y, 100, 12, validation_data=kept, **options)": (
        "Trainer(model, ((x, y), kept), batch_size=100, **options).fit(12)"
    ),
    "np.save(": "Team().rank or np.save(",
}


def changed() -> str:
    script = PLAIN
    for before, after in CHANGES.items():
        assert script.count(before) == 1
        script = script.replace(before, after)
    pairs = zip(PLAIN.splitlines(), script.splitlines(), strict=True)
    assert sum(before != after for before, after in pairs) == 3
    return script


def run_in(folder, text):
    """Run a script in a process that has loaded Keras already, which saves ten seconds each."""
    with contextlib.chdir(folder):
        exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})


@pytest.mark.thorough
def test_it_trains_on_three_ranks_as_on_one(tmp_path, on_ranks):
    import keras

    weights, best = {}, {}
    for ranks, text in ((0, PLAIN), (1, changed()), (3, changed())):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        if ranks == 3:
            on_ranks(3, run_in, str(folder), text, keras=True)
        else:
            run_in(folder, text)
        weights[ranks] = np.load(folder / "weights.npy")
        best[ranks] = keras.saving.load_model(folder / "best.keras").get_weights()
    for ranks in (1, 3):
        assert np.abs(weights[ranks] - weights[0]).max() < 1e-4
        errors = [np.abs(a - b).max() for a, b in zip(best[ranks], best[0], strict=True)]
        assert max(errors) < 1e-4
