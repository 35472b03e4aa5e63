"""Data sets, and that p ranks together see exactly what one rank sees."""

import os
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

from tutorial_dl import data, user_function
from tutorial_dl.data import Batches, Data, Dataset, arrays, characters


def numbered(n):
    """n samples that carry their own number."""
    return Data.of(np.arange(n), np.arange(n) * 10)


def rounds(n, ranks, batch_size, epoch=0, **options):
    """The samples of each round: one array of numbers, joined in rank order."""
    shares = [
        list(Batches(numbered(n), batch_size, rank=r, ranks=ranks, **options).epoch(epoch))
        for r in range(ranks)
    ]
    for batches in shares:
        for x, y in batches:
            np.testing.assert_array_equal(y, 10 * x)  # targets stay with their inputs
    sizes = [[len(x) for x, _ in batches] for batches in shares]
    assert all(max(one) - min(one) <= 1 for one in zip(*sizes, strict=True))
    return [np.concatenate([x for x, _ in one]) for one in zip(*shares, strict=True)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("n", "batch_size"), [(100, 20), (103, 16), (7, 3), (3, 8), (2, 1), (1, 1), (0, 4)]
)
def test_ranks_together_see_what_one_rank_sees(n, batch_size, ranks):
    for epoch in range(3):
        serial = list(Batches(numbered(n), batch_size).epoch(epoch))
        together = rounds(n, ranks, batch_size, epoch)
        assert len(together) == len(serial) == len(Batches(numbered(n), batch_size, rank=0))
        for joined, (x, _) in zip(together, serial, strict=True):
            np.testing.assert_array_equal(joined, x)
        # An epoch has every sample once, and every batch but the last is full.
        np.testing.assert_array_equal(np.sort(np.concatenate([[], *together])), np.arange(n))
        assert all(len(b) == batch_size for b in together[:-1])


@pytest.mark.parametrize(("n", "batch_size"), [(103, 16), (7, 3), (3, 8), (0, 4)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_goes_on_in_its_middle(n, batch_size, shuffle, monkeypatch):
    """An epoch from round k on has the rounds of the whole one, and reads no earlier sample."""
    for rank in range(2):
        batches = Batches(numbered(n), batch_size, rank=rank, ranks=2, shuffle=shuffle)
        whole = [x.tolist() for x, _ in batches.epoch(3)]
        for start in range(len(batches) + 1):
            taken, take = [], Data.take
            with monkeypatch.context() as patch:
                patch.setattr(Data, "take", lambda d, i: taken.extend(i) or take(d, i))  # noqa: B023
                assert [x.tolist() for x, _ in batches.epoch(3, start=start)] == whole[start:]
            assert taken == [i for samples in whole[start:] for i in samples]
        for start in (-1, len(batches) + 1):
            with pytest.raises(ValueError, match=f"start must be from 0 to .*, got {start}"):
                batches.epoch(3, start=start)


def test_epochs_and_seeds_differ_and_repeat():
    batches = Batches(numbered(50), 50)
    first, second, again = (next(batches.epoch(e))[0] for e in (0, 1, 0))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, next(Batches(numbered(50), 50, seed=1).epoch(0))[0])
    # Seed and epoch are not simply added: epoch 1 of seed 0 is not epoch 0 of seed 1.
    assert not np.array_equal(second, next(Batches(numbered(50), 50, seed=1).epoch(0))[0])


def test_without_shuffling_the_order_is_the_data_s():
    assert [b.tolist() for b in rounds(7, 2, 3, shuffle=False)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_shuffling_is_uniform():
    """In 2000 epochs of 4 samples, sample 0 has each place 500 times, +- 5 sigma (97)."""
    batches = Batches(numbered(4), 4)
    places = [int(np.flatnonzero(batches.order(e) == 0)[0]) for e in range(2000)]
    assert np.abs(np.bincount(places) - 500).max() < 97


def test_shard_covers_everything_once():
    whole = numbered(11)
    for ranks in (1, 2, 3, 11, 15):
        parts = [data.shard(whole, r, ranks) for r in range(ranks)]
        np.testing.assert_array_equal(np.concatenate([p.inputs for p in parts]), whole.inputs)
        np.testing.assert_array_equal(np.concatenate([p.targets for p in parts]), whole.targets)
        sizes = [len(p) for p in parts]
        assert sum(sizes) == 11 and max(sizes) - min(sizes) <= 1
        assert all(np.shares_memory(p.inputs, whole.inputs) for p in parts if len(p))


def test_several_inputs_are_taken_together():
    x = {"image": np.arange(12).reshape(6, 2), "angle": np.arange(6.0)}
    many = Data.of(x, (np.arange(6), np.arange(6) + 0.5))
    assert len(many) == 6
    inputs, targets = many.take(np.array([4, 1]))
    assert inputs["image"].tolist() == [[8, 9], [2, 3]] and inputs["angle"].tolist() == [4, 1]
    assert [t.tolist() for t in targets] == [[4, 1], [4.5, 1.5]]
    (image, _), _ = Data.of([x["image"], x["angle"]], np.zeros(6)).take(slice(2, 3))  # a list
    assert image.tolist() == [[4, 5]]
    dataset = Dataset("two", many, many)
    assert dataset.inputs_shape == {"image": (2,), "angle": ()}


def test_digits_are_scikit_learn_s_in_a_fixed_stratified_split():
    from sklearn.datasets import load_digits

    dataset = data.load("digits")
    train, validation = dataset.train, dataset.validation
    assert (dataset.name, dataset.classes, dataset.inputs_shape) == ("digits", 10, (8, 8, 1))
    assert len(train) == 1437 and len(validation) == 360
    assert train.inputs.dtype == np.float32 and train.targets.dtype == np.int64
    assert train.inputs.min() == 0 and train.inputs.max() == 1
    # Together the parts have each of scikit-learn's digits once, with its label.
    images, labels = load_digits(return_X_y=True)
    have = [
        (label, tuple(image.ravel() * 16))
        for part in (train, validation)
        for image, label in zip(part.inputs, part.targets, strict=True)
    ]
    assert sorted(have) == sorted(zip(labels, map(tuple, images), strict=True))
    share = np.bincount(validation.targets) / np.bincount(labels)
    np.testing.assert_allclose(share, 0.2, atol=1 / 174)  # within one digit of a fifth
    np.testing.assert_array_equal(validation.inputs, data.digits().validation.inputs)


def test_curve_is_the_known_function_and_noise():
    exact = data.curve(n=50, noise=0, seed=3)
    assert len(exact.train) == len(exact.validation) == 50 and exact.classes is None
    np.testing.assert_array_equal(exact.train.targets, data.cubic(exact.train.inputs))
    # 1/2 - x - x^2 + 2 x^3 at -1, 0, 1/2, 1
    np.testing.assert_array_equal(data.cubic(np.array([-1, 0, 0.5, 1])), [-1.5, 0.5, 0, 0.5])
    noisy = data.curve(n=20000, noise=0.3, seed=3)
    for part in (noisy.train, noisy.validation):
        residual = part.targets - data.cubic(part.inputs)
        # The mean of n squares of a normal of variance v scatters by v sqrt(2/n): 5 sigma.
        assert np.mean(residual**2) == pytest.approx(0.09, abs=5 * 0.09 * np.sqrt(2 / 20000))
    other = data.curve(n=50, noise=0, seed=4, function=np.sin)
    np.testing.assert_array_equal(other.train.targets, np.sin(other.train.inputs))
    assert not np.array_equal(other.train.inputs, exact.train.inputs)
    assert not np.array_equal(exact.train.inputs, exact.validation.inputs)


USER_FILE = """
import numpy as np
from neighbour import SAMPLES
calls = []
def load():
    calls.append(1)
    x = {"a": np.ones((SAMPLES, 3)), "b": np.zeros(SAMPLES)}
    return (x, np.arange(SAMPLES) % 3), (x, np.arange(SAMPLES) % 2)
def floats(): return (np.ones(3), np.ones(3)), (np.ones(2), np.ones(2))
def ready():
    from tutorial_dl import data
    return data.curve(n=3)
def uneven(): return (np.ones(3), np.ones(4)), (np.ones(2), np.ones(2))
def forgets(): np.ones(3), np.ones(3)
def odd(): return [np.ones(3), np.ones(3)]
def empty(): return (np.ones(3), np.ones(3)), (np.ones(0), np.ones(0))
def shapes(): return (np.ones((3, 2)), np.ones(3)), (np.ones((3, 5)), np.ones(3))
def scalar(): return (1.0, np.ones(3)), (np.ones(0), np.ones(0))
def fails(): raise KeyError("theirs")
"""


@pytest.fixture
def user_file(tmp_path, monkeypatch):
    """The current folder holds a user's users_data.py and a module that it imports."""
    (tmp_path / "users_data.py").write_text(USER_FILE)
    (tmp_path / "neighbour.py").write_text("SAMPLES = 5\n")
    (tmp_path / "needs.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != ""])
    before = set(sys.modules)
    yield tmp_path / "users_data.py"
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("how", ["module", "file", "path"])
def test_load_a_user_s_function(user_file, how, monkeypatch, tmp_path_factory):
    if how == "path":
        monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    where = {"module": "users_data", "file": "users_data.py", "path": str(user_file)}[how]
    dataset = data.load(f"{where}:load")
    assert dataset.inputs_shape == {"a": (3,), "b": ()}
    assert dataset.classes == 3 and len(dataset.train) == 5
    assert data.load(f"{where}:floats").classes is None
    assert data.load(f"{where}:ready").name == "curve"
    assert data.load(dataset) is dataset


def test_a_file_is_run_once(user_file):
    for what in ("data", "model"):
        user_function.find(f"{user_file}:load", what)()
    assert len(sys.modules["users_data"].calls) == 2


def test_a_file_that_hides_a_module_of_python_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("colorsys", "users_colours"):
        monkeypatch.setitem(sys.modules, name, sys)  # removed afterwards
        del sys.modules[name]
    (tmp_path / "colorsys.py").write_text("own = 1\n")
    file = tmp_path / "users_colours.py"
    file.write_text("import colorsys\n\ndef load():\n    return colorsys.rgb_to_hsv(1, 1, 1)\n")
    with pytest.raises(AttributeError) as error:
        user_function.find(f"{file}:load", "data")()
    hidden = f"{tmp_path / 'colorsys.py'} hides Python's own module colorsys"
    assert user_function.shadow(error.value) == f"; {hidden}: give it another name"
    assert user_function.shadow(AttributeError("of numpy")).startswith(f"; {hidden}")
    monkeypatch.delitem(sys.modules, "colorsys")
    assert user_function.shadow(AttributeError("of numpy")) == ""
    (tmp_path / "types.py").write_text("def load():\n    return 1\n")
    file.write_text("from types import load\n")
    user_function._file.cache_clear()
    monkeypatch.delitem(sys.modules, "users_colours")
    with pytest.raises(ImportError) as error:
        user_function.find(f"{file}:load", "data")
    words = f"; Python's own module types hides {tmp_path / 'types.py'}: give it another name"
    assert user_function.shadow(error.value) == words
    other = ImportError("no module"), AttributeError("no types", name="types", obj=tmp_path)
    assert [user_function.shadow(one) for one in other] == ["", ""]
    monkeypatch.chdir(tmp_path)
    assert user_function.find("types:load", "data")() == 1


def test_a_file_with_a_byte_order_mark_or_another_coding(tmp_path):
    for name, coding in (("bom", "utf-8-sig"), ("latin", "latin-1")):
        file = tmp_path / f"{name}.py"
        file.write_text(f"# -*- coding: {coding} -*-\ndef f():\n    return 'é'\n", coding)
        assert user_function.parsed(file).body[0].name == "f"


@pytest.mark.parametrize(
    ("spec", "kind", "complaint"),
    [
        (
            "nosuch",
            ValueError,
            "data 'nosuch': expected curve, digits, events, showers, small-showers, ",
        ),
        ("no.such:f", ValueError, "data 'no.such': no such module in /.*"),
        ("nowhere.py:f", ValueError, "data .*: there is no file .*nowhere.py"),
        ("users_data:nope", ValueError, "users_data has no function 'nope'; it has empty, fails"),
        ("users_data:", ValueError, "expected module:function"),
        ("users_data:uneven", ValueError, "data 'users_data:uneven': .*inputs 3, targets 4"),
        ("users_data:odd", TypeError, r"expected a Dataset or .* or \(x, y\), got a list of 2"),
        ("users_data:forgets", TypeError, r"\(x, y\), got None \(a function without `return`\?\)"),
        ("users_data:empty", ValueError, "validation part has no samples"),
        ("users_data:shapes", ValueError, r"shape \(2,\) for training but \(5,\)"),
        ("users_data:scalar", ValueError, r"inputs is float64 of shape \(\): expected an array"),
    ],
)
def test_load_says_what_is_wrong(user_file, spec, kind, complaint):
    with pytest.raises(kind, match=complaint) as error:
        data.load(spec)
    assert "\n" not in str(error.value)


def test_errors_inside_a_user_s_file_are_theirs_to_see(user_file):
    with pytest.raises(KeyError, match="theirs"):
        data.load("users_data:fails")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        data.load("needs:f")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        data.load("needs.py:f")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Batches(numbered(5), 0), "batch_size must be at least 1, got 0"),
        (lambda: Batches(numbered(5), 2, seed=-1), "seed must be at least 0, got -1"),
        (lambda: Batches(numbered(5), 2, rank=2, ranks=2), "rank must be from 0 to 1, got 2"),
        (lambda: data.shard(numbered(5), -1, 2), "rank must be from 0 to 1, got -1"),
        (lambda: data.curve(n=0), "n must be at least 1, got 0"),
        (lambda: data.curve(noise=-1), "noise must be at least 0, got -1"),
        (lambda: Data.of({}, np.ones(3)), "inputs and targets must have at least one array each"),
        (lambda: Data.of(np.array([None, 1]), np.ones(2)), r"inputs\[0\] is None: expected a"),
        (lambda: Data.of([[1, 2], [3, 4], [5]], np.ones(3)), r"inputs\[2\] has length 1, .* pad"),
        (lambda: Data.of(np.ones(2), ["cat", "dog"]), "targets is text, such as 'cat'.*np.unique"),
        (lambda: Data.of(np.ones((2, 1)), np.float32(3)), r"targets is float32 of shape \(\)"),
        (
            lambda: Data.of(pandas.DataFrame({"a": [1, 2], "b": [3.0, "x"]}), np.ones(2)),
            "inputs, column 'b', row 1 is the text 'x': expected a number",
        ),
        (
            lambda: Data.of(pandas.DataFrame({"a": [True, None], "b": [0.5, 1]}), np.ones(2)),
            "inputs, column 'a', row 1 is None: expected a number",
        ),
    ],
)
def test_bad_values_are_refused_in_one_line(make, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        make()
    assert "\n" not in str(error.value) and len(str(error.value)) <= 200


def test_what_users_have_becomes_arrays():
    frame = pandas.DataFrame({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5]})
    mine = Data.of(frame, frame["a"])
    np.testing.assert_array_equal(mine.inputs, [[1, 0.5], [2, 1.5], [3, 2.5]])
    np.testing.assert_array_equal(mine.targets, [1, 2, 3])
    odd = frame.assign(c=[True, False, True])  # as pandas.get_dummies makes it: objects
    np.testing.assert_array_equal(Data.of(odd, frame["a"]).inputs[:, 2], [1, 0, 1])
    words = Data.of(["one two", "three"], [0, 1])  # for models with a TextVectorization layer
    assert words.inputs.dtype.kind == "U" and len(words) == 2


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_found_with_its_index(part, value):
    whole = {
        name: Data.of(np.ones((5, 2, 3), np.float32), np.arange(5))
        for name in ("train", "validation")
    }
    dataset = Dataset("mine", **whole)
    dataset.check_finite()
    whole[part].inputs[3, 1, 2] = value
    with pytest.raises(ValueError, match=rf"'mine': {part}.inputs\[3, 1, 2\] is {value}"):
        dataset.check_finite()


def test_data_larger_than_a_chunk_are_searched_to_the_end(monkeypatch):
    monkeypatch.setattr(arrays, "CHUNK", 10)
    x = np.zeros((7, 4), np.float32)
    assert arrays.not_finite(x) is None
    x[6, 3] = np.nan
    assert arrays.not_finite(x) == (6, 3)


def test_text_is_the_standard_library_and_what_follows():
    dataset = data.text(length=50, characters=20_000)
    for part, most in ((dataset.train, 18_000), (dataset.validation, 2_000)):
        assert most - 100 < part.inputs.size < most and part.inputs.shape[1] == 50
        np.testing.assert_array_equal(part.inputs.reshape(-1)[1:], part.targets.reshape(-1)[:-1])
        assert part.inputs.max() < dataset.classes == 97
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    for part, first in ((dataset.train, files[1]), (dataset.validation, files[0])):
        written = first.read_text(encoding="utf-8")[:50]  # file 0 and every tenth are held out
        assert characters.decode(part.inputs[0]) == written
    assert characters.decode(characters.encode("if x:\n\ty = 'é€'")) == "if x:\n\ty = '??'"
    again = data.load("text")
    assert again.inputs_shape == (64,) and len(again.train) > 6000
    with pytest.raises(ValueError, match="at least 510 for windows of 50, got 500"):
        data.text(50, 500)
    with pytest.raises(ValueError, match="length must be at least 1 character, got 0"):
        data.text(0)
