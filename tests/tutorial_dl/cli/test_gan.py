"""`train` and `generate` of a GAN, from the command line; what is refused."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from commands_here import run_command
from commands_on_ranks import ERRORS, on_these_ranks, told

from numba_kernels.team.team import Team
from tutorial_dl import config, data
from tutorial_dl.data.loading import NAMES
from tutorial_dl.training import gan_quality
from tutorial_dl.training.callbacks import EarlyStopping
from tutorial_dl.training.setup import prepare

TRAIN = ["train", "--model", "one-dimensional-gan", "--data", "curve", "--epochs", "4", "--quiet"]


def test_train_resume_and_generate(on_ranks, tmp_path):
    """The trainings run on ranks that are kept."""

    def trained(*words, ranks=2):
        (tmp_path / ERRORS).unlink(missing_ok=True)
        printed = on_ranks(ranks, on_these_ranks, str(tmp_path), words[1:])
        assert printed.endswith(ranks * "status 0\n"), printed
        return printed, (tmp_path / ERRORS).read_text()

    h5py = pytest.importorskip("h5py")
    whole, folder, out = (str(tmp_path / name) for name in ("whole.json", "run", "samples.h5"))
    options = ["--discriminator-steps", "2", "--label-smoothing", "0.1"]
    printed, _ = trained(*TRAIN, *options, "--json", whole)
    assert "discriminator loss" in printed and ", distance 0." in printed
    shorter = [*TRAIN[:-2], "2", "--quiet"]
    trained(*shorter, *options, "--checkpoint", folder)
    again = str(tmp_path / "again.json")
    _, words = trained(*TRAIN, *options, "--checkpoint", folder, "--resume", "--json", again)
    assert "going on from step 14, epoch 3" in words
    first, second = (json.loads(Path(file).read_text()) for file in (whole, again))
    for row, other in zip(first["history"], second["history"], strict=True):
        for name in ("generator_loss", "val_discriminator_loss", "spread", "distance"):
            assert row[name] == other[name]
    drawn = [one["epoch"] for one in first["samples"]]
    assert drawn == [0, 1, 2, 3, 4] and [one["epoch"] for one in second["samples"]] == [3, 4]
    assert first["samples"][-1] == second["samples"][-1]  # resumed bit for bit
    assert first["discriminator_learning_rate"] == 0.002 and first["learning_rate"] == 0.001

    done = run_command("generate", "--checkpoint", folder, "-n", "300", "--out", out)
    assert done.returncode == 0
    assert "300 samples of one-dimensional-gan after step 28" in done.stderr
    with h5py.File(out) as file:
        made = file["features"][:]
    assert made.shape == (300,) and np.isfinite(made).all() and made.std() > 0.1
    done = run_command("generate", "--checkpoint", folder, "--condition", "5", "--out", out)
    assert done.returncode == 2 and "--condition must be as in the training data" in done.stderr
    changed = [*TRAIN, "--gan-loss", "wasserstein", "--checkpoint", str(tmp_path), "--resume"]
    trained(*changed, ranks=1)  # an empty folder: a run of its own


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--accumulate", "2"], "--accumulate does not fit a GAN"),
        (["--gan-loss", "wasserstein", "--label-flips", "0.1"], "flips is for the non_saturating"),
        (["--target", "val_accuracy=1"], "there is no 'val_accuracy'; one of ['generator_loss'"),
    ],
)
def test_options_that_do_not_fit(on_ranks, tmp_path, words, complaint):
    status, error = told(on_ranks, 1, tmp_path, [*TRAIN[1:], *words])
    assert status == 2 and complaint in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"model": "dense", "label_flips": 0.1},
            "--label-flips is for a GAN, such as",
        ),
        ({"data": "curve", "gradient_penalty": 3.0}, "--gradient-penalty has no effect without"),
    ],
)
def test_options_of_a_gan_need_one_that_uses_them(options, line):
    with pytest.raises(ValueError, match=line):
        prepare(config.RunConfig.of(**{"model": "one-dimensional-gan"} | options), Team())


def test_data_in_files_are_read(tmp_path):
    pytest.importorskip("h5py")
    x = np.random.default_rng(0).normal(size=50).astype(np.float32)
    file = data.write_hdf5(data.Data.of(x, np.zeros(50, np.int64)), tmp_path / "numbers.h5")
    asked = config.RunConfig.of(
        model="one-dimensional-gan", data=str(file), validation="0.2", quiet=True
    )
    trainer = prepare(asked, Team())
    trainer.fit_to(1)
    assert np.isfinite(trainer.history.last["distance"])


def run_of(team, epochs=8, **options):
    """Train by the options; the trainer."""
    asked = {"model": "one-dimensional-gan", "data": "curve", "quiet": True, "epochs": epochs}
    trainer = prepare(config.RunConfig.of(**asked | options), team)
    trainer.fit_to(epochs)
    return trainer


def last_epoch(distances, patience):
    """The first epoch after which none of the last `patience` epochs is the best so far."""
    for epoch in range(1, len(distances) + 1):
        best = 1 + int(np.argmin(distances[:epoch]))
        if epoch - best >= patience:
            return epoch
    return len(distances)


def test_patience_and_target_heed_the_quality():
    whole = run_of(Team(), 30).history.column("distance")
    end = last_epoch(whole, 2)
    assert end < 30
    tired = run_of(Team(), 30, patience=2)
    assert tired.history.column("distance") == whole[:end]
    assert tired.stopped.startswith(f"distance has not improved since epoch {end - 2}, 0.")
    goal = float(np.median(whole[:5]))
    there = 1 + next(i for i, distance in enumerate(whole) if distance <= goal)
    content = run_of(Team(), 30, target=f"distance={goal!r}")
    assert len(content.history.epochs) == there < 30
    assert "distance" in content.stopped and "has reached" in content.stopped


def stops(strategy):
    team = Team()
    trainer = run_of(team, 40, patience=1, strategy=strategy)
    if team.rank == 0 or strategy == "synchronous":
        distances = trainer.history.column("distance")
        assert len(distances) == last_epoch(distances, 1) < 40


@pytest.mark.parametrize("strategy", ["synchronous", "downpour"])
def test_ranks_stop_together(on_ranks, strategy):
    on_ranks(2, stops, strategy)


def voxels():
    part = data.Data.of(np.zeros((2, 4, 4, 4)), np.ones(2))
    return data.Dataset("voxels", part, part)


@pytest.mark.parametrize(
    ("dataset", "column", "better"),
    [(data.digits, "accuracy_asked", 1), (voxels, "separation", -1), (data.curve, "distance", -1)],
)
def test_patience_waits_for_the_first_measure(dataset, column, better):
    (first, *_), _ = gan_quality.measure_of(dataset(), 0)
    assert (first, EarlyStopping(first).sign) == (column, better)


def test_patience_needs_a_measure(monkeypatch):
    monkeypatch.setattr(gan_quality, "measure_of", lambda *_: None)
    with pytest.raises(ValueError, match=r"--patience needs a measure of .* for data 'curve': "):
        run_of(Team(), patience=2)
    monkeypatch.setitem(NAMES, "curve", lambda: dataclasses.replace(data.curve(), validation=None))
    with pytest.raises(ValueError, match="needs a validation part; data 'curve' have none"):
        run_of(Team(), patience=2)
