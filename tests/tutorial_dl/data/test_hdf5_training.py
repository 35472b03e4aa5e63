"""Training on HDF5 files: p ranks as one, `train` on the command line, and errors."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import h5py
import numpy as np
import pytest
from commands_on_ranks import told

from tutorial_dl import data


@pytest.fixture
def folder(tmp_path):
    """Files of 0, 1, 999 and 437 digits, and one file for validation."""
    digits = data.digits()
    edges = np.cumsum((0, 0, 1, 999, 437))
    for i, (first, end) in enumerate(pairwise(edges)):
        data.write_hdf5(digits.train.rows(slice(first, end)), tmp_path / f"{i}.h5")
    data.write_hdf5(digits.validation, tmp_path / "kept.hdf5")
    (tmp_path / "files.txt").write_text("# digits\n*.h5\n")
    return tmp_path


def training(folder):
    """All ranks together train as each one alone; the last batch has fewer samples than ranks.

    The rule is plain SGD, so that only the order of sums differs.
    """
    import threading

    from numba_kernels import PeerError, Team
    from tutorial_dl import Trainer, models, optimizers, strategies

    team = Team()
    alone = Team(team.comm.Split(team.rank))
    weights = {}
    for name, on in (("together", team), ("alone", alone)):
        dataset = data.load(f"{folder}/*.h5", validation=f"{folder}/kept.hdf5")
        dataset.train.window = 500 * dataset.train.table.sample_bytes  # 2 batches of 239
        trainer = Trainer(
            models.softmax(dataset), dataset, strategies.Synchronous(on),
            optimizers.get("sgd", 0.5), batch_size=239, progress=False,
        )  # fmt: skip
        history = trainer.fit(3)
        weights[name] = trainer.replica.parameters.copy(), history.last["val_accuracy"]
        assert dataset.classes == 10 and len(trainer.batches) == 7  # 1437 = 6 x 239 + 3
    np.testing.assert_allclose(weights["together"][0], weights["alone"][0], atol=1e-6)
    assert weights["together"][1] == pytest.approx(weights["alone"][1], abs=1e-9)
    assert weights["alone"][1] > 0.5

    kept = data.digits().validation
    np.testing.assert_array_equal(trainer.predict(dataset.validation), trainer.predict(kept.inputs))

    # If one rank can't read, the epoch ends on all ranks, and no thread goes on reading.
    team.barrier()  # other ranks may still be reading
    if team.rank == 1:
        dataset.train.table.files[3].rename(f"{folder}/gone")
    team.barrier()
    trainer = Trainer(
        models.softmax(dataset), dataset, strategies.Synchronous(team), progress=False
    )
    with pytest.raises((data.DataError, PeerError), match=r"3.h5: there is no such file"):
        trainer.fit(1)
    assert not [t for t in threading.enumerate() if t.name == "reading ahead"]
    team.settle()


def test_ranks_train_on_files_as_one_does(on_ranks, folder):
    on_ranks(4, training, str(folder))


def train(folder, *words):
    """Run `train` in the folder; returns its standard output, or its one-line error."""
    done = subprocess.run(
        [sys.executable, "-m", "tutorial_dl", "train", "--quiet", *words], cwd=folder,
        capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL,
        env=dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3"),
    )  # fmt: skip
    if done.returncode:
        (line,) = done.stderr.strip().splitlines()
        return done.returncode, line
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_train_on_a_list_with_a_cache(folder):
    words = ["--model", "softmax", "--epochs", "2", "--json", "-"]
    words += ["--learning-rate", "0.01", "--data", "files.txt", "--validation", "kept.hdf5"]
    result = json.loads(train(folder, "-n", "2", *words, "--cache", "local"))
    assert result["val_accuracy"] > 0.8 and result["data"] == "files.txt"
    assert len([*(folder / "local").glob("*.h5")]) == 4
    assert len([*(folder / "local").glob("*.hdf5")]) == 1
    # One rank without copies, with other file names, has the same batches.
    for file in folder.glob("*.h*5"):
        with h5py.File(file, "r+") as open_file:
            open_file.move("features", "x")
            open_file.move("labels", "y")
    again = json.loads(train(folder, *words, "--features", "x", "--labels", "y"))
    assert again["ranks"] == 1 and again["val_loss"] == pytest.approx(result["val_loss"], rel=1e-4)


@pytest.mark.thorough
def test_what_is_wrong_is_told_once_by_all_ranks(on_ranks, folder):
    whole = (folder / "3.h5").read_bytes()
    (folder / "3.h5").write_bytes(whole[:-1])
    words, size = ["--model", "softmax", "--data"], len(whole)
    status, said = told(on_ranks, 2, folder, ["--quiet", *words, "?.h5"])
    assert status == 2
    assert said == f"error: 3.h5: it is truncated: only {size - 1} of {size} bytes are there\n"
    # Damage within a file is found when it is read, and ends the run with one line, too.
    part = data.load("digits").train.rows(slice(0, 437))
    data.write_hdf5(part, folder / "3.h5", chunks=True, compression="gzip", fletcher32=True)
    with h5py.File(folder / "3.h5") as file:
        chunk = file["features"].id.get_chunk_info(0)
    with open(folder / "3.h5", "r+b") as file:
        file.seek(chunk.byte_offset + 20)
        file.write(b"\xff\xff\xff")
    status, line = train(folder, "-n", "2", *words, "?.h5", "--validation", "kept.hdf5")
    assert status == 1 and "error: 3.h5: 'features' can't be read, samples " in line
    (folder / "files.txt").write_text("nosuch.h5\n")
    said = told(on_ranks, 2, folder, ["--quiet", *words, "files.txt"])
    assert said == (2, "error: data: there is no file nosuch.h5\n")


def looks_for_a_nan(folder):
    """Only rank 0 reads the files again, and raises; the others hear of it."""
    from numba_kernels import PeerError, Team
    from tutorial_dl import Trainer, models, strategies
    from tutorial_dl.runtime.errors import NotFinite

    team, looks = Team(), []
    dataset = data.load(f"{folder}/2.h5", validation=f"{folder}/kept.hdf5")
    kept = dataset.validation
    right = kept.not_a_number
    kept.not_a_number = lambda which: looks.append(which) or right(which)
    trainer = Trainer(models.softmax(dataset), dataset, strategies.Synchronous(team),
                      progress=False)  # fmt: skip
    expected = PeerError if team.rank else NotFinite
    with pytest.raises(expected, match=r"features\[5, 3, 2, 0\] is nan; remove"):
        trainer.fit(1)
    assert looks == ([] if team.rank else [slice(None)])
    team.recover()


def test_one_rank_looks_for_a_nan_in_the_validation_data(on_ranks, folder):
    with h5py.File(folder / "kept.hdf5", "r+") as file:
        file["features"][5, 3, 2, 0] = np.nan
    on_ranks(2, looks_for_a_nan, str(folder))


@pytest.mark.parametrize("words", [[], ["--strategy", "downpour"], ["--validation", "kept.hdf5"]])
def test_the_file_and_row_of_a_nan_are_told(on_ranks, folder, words):
    name = words[1] if "--validation" in words else "2.h5"
    with h5py.File(folder / name, "r+") as file:
        file["features"][5, 3, 2, 0] = np.nan
    words = ["--quiet", "--model", "softmax", "--data", "2.h5", "--epochs", 1, *words]
    status, said = told(on_ranks, 2, folder, words)
    assert (
        status == 1 and f": {name}: features[5, 3, 2, 0] is nan; remove such samples\n" in said
    ), said
    assert said.count("\n") == 1
