"""What tests of models that ranks divide have in common: one rank fails, and results are equal."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands_on_ranks import told

from numba_kernels.errors import PeerError
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data
from tutorial_dl.training import callbacks


class Fails(callbacks.Callback):
    """Raises once on the ranks where it is armed: after the next step, or after step `step`."""

    def __init__(self, armed: bool = False, step: int | None = None):
        self.armed, self.step = armed, step

    def on_step_end(self, trainer, loss, samples):
        if self.armed and self.step in (None, trainer.steps):
            self.armed = False
            raise ArithmeticError("no more")


def trainers(
    build,
    part,
    strategy,
    optimizer="momentum",
    callbacks=(),
    validate=True,
    eager=False,
    batch_size=7,
    **options,
):
    """The same training by one process, on rank 0 only, and by all ranks: serial, found, batch.

    build: makes the compiled Keras model, always the same, and a batch of all samples
    part: makes this rank's replica of such a model, which the ranks train by `strategy`
    eager: compute without graphs, which take longer to make than a few steps
    options: of both trainers

    `serial` is None on the other ranks.
    """
    batch = build()[1]
    samples = data.Data.of(*batch)
    kept = samples if validate else None
    classes = getattr(batch[1], "dtype", np.dtype("f4")).kind == "i"
    dataset = data.Dataset("some", samples, kept, int(batch[1].max()) + 1 if classes else None)
    how = dict(optimizer=optimizer, learning_rate=0.01, batch_size=batch_size, progress=False)
    alone, serial = Team().split(Team().rank), None
    if Team().rank == 0:
        # Checkpoints of strategy 'serial' belong to it alone.
        by = "synchronous" if "checkpoint" in options else "serial"
        whole = build()[0]
        whole.run_eagerly = eager or by == "serial"
        serial = Trainer(whole, dataset, by, team=alone, **how | options)
    replica = part(build()[0])
    if eager:
        replica.model.run_eagerly = True
    found = Trainer(replica, dataset, strategy, callbacks=callbacks, **how | options)
    return serial, found, batch


def fails_and_recovers(found, epochs: int) -> None:
    """Train until a `Fails` that is armed on rank 1 raises there; the others learn of it."""
    rank = found.team.rank
    with pytest.raises(ArithmeticError if rank == 1 else PeerError, match="no more") as error:
        found.fit(epochs)
    assert rank == 1 or "rank 1" in str(error.value)
    found.team.recover()


def same_training(found, serial, batch, near: float) -> None:
    """Equal histories, weights, state and outputs; `serial` is None but on rank 0. Collective."""
    from keras_networks import keras

    outputs, ours = found.predict(batch[0]), found.replica.parameters
    ours = found.strategy.holding.joined(ours, 0, found.strategy.holding.size)
    if serial is None:
        return
    for mine, theirs in zip(found.history.epochs, serial.history.epochs, strict=True):
        assert theirs.keys() >= mine.keys() >= {"loss"}
        for name in mine.keys() - {"seconds", "samples_per_second"}:
            assert mine[name] == pytest.approx(theirs[name], rel=3 * near, abs=near), name
    expected = serial.replica.parameters
    np.testing.assert_allclose(ours, expected, rtol=0, atol=near * np.abs(expected).max())
    state = serial.replica.state
    np.testing.assert_allclose(found.replica.state, state, rtol=10 * near, atol=near)
    expected = serial.replica.predict(batch[0])
    for a, b in zip(*map(keras.tree.flatten, (outputs, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=near)


def same_file(path: Path, serial, batch, near: float):
    """A plain .keras file gives what the model of one process does; returns the loaded model."""
    from keras_networks import keras

    loaded = keras.saving.load_model(path)
    outputs = loaded(batch[0]), serial.replica.predict(batch[0])
    for a, b in zip(*map(keras.tree.flatten, outputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=near)
    return loaded


def same_vectors(serial, saving, epochs: int, near: float) -> None:
    """Resumed from the checkpoint that others have written, one process has what it has now."""
    vectors = [serial.replica.parameters, *serial.strategy.state.slots]
    expected = [one.copy() for one in vectors]
    for one in vectors:
        one[:] = 0
    serial.run.saving = saving
    assert serial.resume() and len(serial.history.epochs) == epochs
    for mine, theirs in zip(vectors, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=near * np.abs(theirs).max())


@contextlib.contextmanager
def in_float64():
    """Keras makes models of float64 meanwhile."""
    from keras_networks import keras

    before = keras.config.dtype_policy()
    keras.config.set_floatx("float64"), keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx("float32"), keras.config.set_dtype_policy(before)


def with_shared_weights():
    """A Keras model that uses a layer twice, with another between."""
    from keras_networks import keras, layers

    x, shared = keras.Input((4,)), layers.Dense(4, name="shared")
    model = keras.Model(x, layers.Dense(1)(shared(layers.Dense(4, name="between")(shared(x)))))
    model.compile(loss="mse")
    return model


def options_of(folder: Path, test_file: str, *lines: str) -> list[str]:
    """--model and --data of a user's file with these lines, which may import from a test's file."""
    here, support = Path(test_file).parent, Path(__file__).parent
    paths = f"import sys\nsys.path[:0] = [{str(here)!r}, {str(support)!r}]"
    file = folder / "mine.py"
    file.write_text("\n".join([paths, *lines, ""]))
    return ["--model", f"{file}:whole", "--data", f"{file}:data"]


def train_command(*options) -> subprocess.CompletedProcess:
    """Run `train` with these options in processes of its own."""
    command = [sys.executable, "-m", "tutorial_dl", "train", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def same_commands(
    folder: Path, options: list, cut: list, on_ranks=None, ranks=1, near=1e-9
) -> dict:
    """An epoch with `options` on one rank, and with `cut`: the JSON of both has the same loss.

    With the fixture `on_ranks`, on ranks that are kept; otherwise commands start what `cut` needs.
    """
    found = []
    for number, (n, more) in enumerate([(1, []), (ranks, cut)]):
        file = folder / f"{number}.json"
        words = [*options, "--epochs", 1, "--batch-size", 12, "--quiet", *more, "--json", file]
        if on_ranks is None:
            done = train_command(*words)
            ended = done.returncode, done.stderr
        else:
            ended = told(on_ranks, n, folder, words)
        assert ended == (0, ""), ended
        found.append(json.loads(file.read_text()))
    one, several = found
    assert one["ranks"] == 1 < several["ranks"] and one["parameters"] == several["parameters"]
    assert several["val_loss"] == pytest.approx(one["val_loss"], rel=near)
    return several
