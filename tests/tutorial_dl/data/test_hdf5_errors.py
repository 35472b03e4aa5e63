"""Errors of HDF5 files are one line that names the file, before training starts."""

import os

import h5py
import numpy as np
import pytest

from tutorial_dl import data
from tutorial_dl.data import DataError


def write(path, features, labels, **options):
    with h5py.File(path, "w", **options) as file:
        file["features"], file["labels"] = features, labels
    return path


def table(path, n=10, shape=(3,), dtype="f4"):
    return write(path, np.zeros((n, *shape), dtype), np.arange(n) % 2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two good files, and bad files of many kinds."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.h5", "b.h5"):
        table(name)
    table("empty.h5", 0)
    table("other_empty.h5", 0, shape=())  # as h5py stores an empty list
    table("shape.h5", shape=(4,))
    table("dtype.h5", dtype="f8")
    write("lengths.h5", np.zeros((9, 3), "f4"), np.zeros(10, int))
    write("text.h5", np.array([b"x", b"y"]), np.zeros(2, int))
    write("scalar.h5", np.float32(1), np.zeros(1, int))
    write("label_shape.h5", np.zeros((4, 3), "f4"), np.zeros((4, 2), int))
    with h5py.File("missing.h5", "w") as file:
        file["x"] = file["y"] = np.zeros(3)
    with h5py.File("nothing.h5", "w"):
        pass
    with h5py.File("group.h5", "w") as file:
        file["features/inner"], file["labels"] = np.zeros(3), np.zeros(3)
    with h5py.File("link.h5", "w") as file:
        file["features"], file["labels"] = h5py.SoftLink("/gone"), np.zeros(3)
    (tmp_path / "zero.h5").touch()
    (tmp_path / "text_file.h5").write_text("no HDF5 at all\n" * 100)
    (tmp_path / "dir.h5").mkdir()
    (tmp_path / "good.txt").write_text("# two files\na.h5   # the first\n\n b.h5\n")
    (tmp_path / "bad.txt").write_text("a.h5\nnosuch.h5\n")
    (tmp_path / "comment.txt").write_text("# nothing yet\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up.txt").write_text("../*.hdf5\n../a.h5\n")
    table("c.hdf5")
    return tmp_path


MEANT = {
    "a.h5": "a", "a.h5,b.h5": "ab", "b.h5, a.h5": "ba", "[ab].h5": "ab", "good.txt": "ab",
    "sub/up.txt": "ca", ("b.h5", "a.h5"): "ba", "?.h5,c.hdf5": "abc", "./a.h5": "a",
    "empty.h5,a.h5,other_empty.h5": "ea",
}  # fmt: skip


def test_which_files_are_meant(folder):
    for spec, files in MEANT.items():
        dataset = data.load(spec)
        found = [os.path.basename(p)[0] for p in dataset.train.table.files]
        assert "".join(found).rstrip("o") == files, spec
        assert len(dataset.train) + len(dataset.validation) == 10 * len(files.replace("e", ""))


WRONG = [
    ("nosuch.h5", "data: there is no file nosuch.h5"),
    ("a.h5,nosuch.h5", "data: there is no file nosuch.h5"),
    ("no*such.h5", r"data: no file matches no\*such.h5"),
    ("", "data '': expected curve, digits"),
    (",", "data: no files are named"),
    ([], "data: no files are named"),
    ("dir.h5", r"data: dir.h5 is a folder; expected files, for example dir.h5/\*.h5"),
    ("a.h5,./a.h5", "data: a.h5 is named twice"),
    ("bad.txt", "data: there is no file nosuch.h5"),
    ("nosuch.txt", "data: there is no file nosuch.txt"),
    ("comment.txt", "data: comment.txt names no files; expected one path per line"),
    ("binary.txt", "data: binary.txt can't be read as a list of paths"),
    ("a.h5,missing.h5", "^missing.h5: it has no 'features'; it has x, y$"),
    ("nothing.h5", "^nothing.h5: it has no 'features'; it has nothing$"),
    ("link.h5", "^link.h5: it has no 'features'"),
    ("group.h5", r"^group.h5: 'features' is a group \(inner\), not a dataset$"),
    (
        "a.h5,b.h5,shape.h5",
        r"^shape.h5: 'features' has samples of shape \(4,\), but a.h5 has \(3,\)",
    ),
    ("a.h5,dtype.h5", "^dtype.h5: 'features' has samples of dtype float64, but a.h5 has float32$"),
    ("empty.h5,b.h5,label_shape.h5", r"^label_shape.h5: 'labels' has .* \(2,\), but b.h5 has \(\)"),
    ("a.h5,lengths.h5", "^lengths.h5: .* numbers of samples: 'features' has 9, 'labels' has 10$"),
    ("text.h5", r"^text.h5: 'features' has type \|S1; expected numbers$"),
    ("scalar.h5", r"^scalar.h5: 'features' has shape \(\); expected samples first$"),
    ("zero.h5", r"^zero.h5: it is empty \(0 bytes\)$"),
    ("text_file.h5", "^text_file.h5: it is not an HDF5 file, or its header is lost$"),
    ("empty.h5", "^no samples at all in empty.h5$"),
    ("empty.h5,other_empty.h5", "^no samples at all in empty.h5 and 1 other file$"),
]


def test_wrong_files(folder):
    for spec, message in WRONG:
        with pytest.raises(ValueError, match=message) as error:
            data.load(spec)
        assert "\n" not in str(error.value)


WORDS = [
    (dict(features="x"), "^a.h5: it has no 'x'; it has features, labels$"),
    (dict(labels="features,nosuch"), "^a.h5: it has no 'nosuch'"),
    (dict(labels="a=labels,a=features"), "labels 'a=labels,a=features': .*every input's name"),
    (dict(features=""), "features '': expected NAME, NAME,NAME or"),
    (dict(features="a=b,c"), "features 'a=b,c': expected NAME"),
    (dict(validation="nosuch.h5"), "^validation: there is no file nosuch.h5"),
    (dict(validation="shape.h5"), r"^shape.h5: 'features' .* \(4,\), but a.h5 has \(3,\)$"),
    (dict(validation="b.h5,missing.h5"), "^missing.h5: it has no 'features'"),
    (dict(validation="empty.h5"), "^no samples at all in empty.h5$"),
    (dict(validation="1"), "validation 1: expected a share from 0 to below 1, or HDF5 files"),
    (dict(validation=1.0), "validation 1.0: expected a share from 0 to below 1"),
    (dict(validation=0.96), "a.h5: 10 samples in all, none left to train on after a share of"),
    (dict(cache="a.h5"), r"cache a.h5: it can't be created: File exists"),
]


def test_wrong_words(folder):
    for words, message in WORDS:
        with pytest.raises(ValueError, match=message) as error:
            data.load("a.h5", **words)
        assert "\n" not in str(error.value)
        (word,) = words
        with pytest.raises(ValueError, match=f"^{word} .* is for HDF5 files; data 'digits' has"):
            data.load("digits", **words)


def test_names_are_looked_up_where_the_ranks_are(folder):
    """The starting process only calls `check`, which tests that files exist and opens none."""
    data.loading.check("missing.h5,zero.h5", features="anything")
    with pytest.raises(DataError, match=r"there is no file nosuch\.h5"):
        data.loading.check("a.h5", validation="nosuch.h5")


def test_truncated_files_are_found_out_wherever_they_end(tmp_path):
    for how in ("contiguous", "compressed", "latest format", "own header"):
        truncated(tmp_path, how)


def truncated(tmp_path, how):
    options = {"libver": "latest"} if how == "latest format" else {}
    options |= {"userblock_size": 512} if how == "own header" else {}
    path, cut = tmp_path / "whole.h5", tmp_path / "cut.h5"
    with h5py.File(path, "w", **options) as file:
        storage = dict(chunks=(10, 5), compression="gzip") if how == "compressed" else {}
        file.create_dataset("features", data=np.random.default_rng(0).random((200, 10)), **storage)
        file["labels"] = np.arange(200) % 2
    whole = path.read_bytes()
    if how == "own header":
        whole = b"somebody's own words".ljust(512, b".") + whole[512:]
    good = write(tmp_path / "good.h5", np.zeros((5, 10)), np.zeros(5, int))
    cut.write_bytes(whole)
    assert len(data.load(str(cut), validation=str(good)).train) == 200
    ends = {0, 1, 7, 8, 50, 511, 512, 520, 600, len(whole) // 2, len(whole) - 1}
    ends |= set(range(0, len(whole), len(whole) // 37))
    for end in sorted(ends):
        cut.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"cut.h5: it (is|can't)") as error:
            data.load([good, cut])
        text = str(error.value)
        assert "\n" not in text
        if 2048 < end < len(whole) - 1:
            assert text.endswith(f"it is truncated: only {end} of {len(whole)} bytes are there")
