"""What streams are made of: their sources, the parts of a batch, and how a batch is sent."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from commands_on_ranks import told

from numba_kernels.team.bytes import pack, unpack
from tutorial_dl import data
from tutorial_dl.data.elements import batch_of, share_of
from tutorial_dl.data.sources import ByNumber, source_of


def epochs(made, count=3, steps=None, **options):
    """The elements of each epoch, as the source tells them."""
    source = source_of(made)
    source.peek()
    return [list(source.epoch(e, 0, steps, **options)) for e in range(count)]


def test_epochs_of_each_source():
    assert epochs(lambda: iter([1, 2, 3])) == [[1, 2, 3]] * 3
    assert epochs(lambda epoch: iter([epoch, 7])) == [[0, 7], [1, 7], [2, 7]]
    assert epochs(itertools.count(), steps=2) == [[0, 1], [2, 3], [4, 5]]
    assert epochs({1: 0, 2: 0, 3: 0}.keys(), steps=2) == [[1, 2], [3, 1], [2, 3]]
    assert epochs({1: 0, 2: 0, 3: 0}.keys(), steps=2, anew=True) == [[1, 2]] * 3
    assert epochs(iter([1, 2, 3]), 1) == [[1, 2, 3]]
    assert epochs(lambda epoch: itertools.count(epoch), steps=2) == [[0, 1], [1, 2], [2, 3]]
    # From the middle of an epoch
    assert list(source_of(lambda epoch: iter([epoch, 7, 8])).epoch(4, 1)) == [7, 8]
    assert list(source_of(itertools.count()).epoch(0, 3, 5)) == [3, 4]
    with pytest.raises(data.DataError, match="ended after 3 batches of this epoch, expected"):
        list(source_of(lambda: iter([1, 2, 3])).epoch(0, 4))


class DatasetV2:
    """Looks like a tf.data.Dataset; -1 is TensorFlow's INFINITE_CARDINALITY, -2 its UNKNOWN."""

    __module__ = "tensorflow.data"

    def __init__(self, number):
        self.number = number

    def cardinality(self):
        return self.number


@pytest.mark.parametrize(("made", "length", "endless"), [
    (DatasetV2(5), 5, False), (DatasetV2(0), 0, False), (DatasetV2(-1), None, True),
    (DatasetV2(-2), None, False), (itertools.count(), None, True), (iter([1, 2]), None, False),
    ({1: 0, 2: 0}.keys(), 2, False), (lambda: iter([1]), None, False),
])  # fmt: skip
def test_what_is_known_of_a_pass(made, length, endless):
    assert (source_of(made).length, source_of(made).endless) == (length, endless)


@pytest.mark.parametrize("made", [
    np.ones(3), [1, 2], (1, 2), {"a": 1}, "text", b"text", range(3), int, None, 3.5,
    np.float32(1), data.curve().train, memoryview(b"abc"),
])  # fmt: skip
def test_no_streams(made):
    with pytest.raises(TypeError, match="a stream must be"):
        source_of(made)


FORMS = [
    np.arange(6).reshape(3, 2),
    (np.ones((3, 2), np.float32), np.array([True, False, True])),
    [[[1, 2], [3, 4], [5, 6]], [0, 1, 2]],
    ((np.ones((3, 2, 2)), np.arange(3, dtype=np.uint8)), None),
    ({"a": np.ones(3), "b": np.zeros((3, 0))}, {"c": np.ones((3, 1), np.float16)}, np.ones(3)),
    (np.array(["a", "äöü", ""]), np.arange(3.0)[::-1], None),
    (np.array([[b"\x00a", b""], ["b", "c"], ["", "\x00"]], object), np.arange(3, dtype=">i4")),
    (np.asfortranarray(np.arange(12.0).reshape(3, 4)),),
]


@pytest.mark.parametrize("element", FORMS)
@pytest.mark.parametrize("part", [slice(0, 3), slice(1, 2), slice(2, 2)])
def test_a_batch_is_sent_as_it_is(element, part):
    batch = share_of(batch_of(element), part)
    words, (first, second) = pack([batch, "more"])
    assert first + second == words.size and unpack(words[first:]) == "more"
    came = unpack(words[:first])
    assert len(came) == len(batch)
    for mine, theirs in zip(batch, came, strict=True):
        assert type(mine) is type(theirs)
        mine, theirs = data.dataset.by_name(mine), data.dataset.by_name(theirs)
        assert list(mine) == list(theirs)
        for name, array in mine.items():
            assert array.dtype == theirs[name].dtype and array.shape == theirs[name].shape
            np.testing.assert_array_equal(array, theirs[name])


WRONG = [
    ((), "it has 0 parts"),
    (None, "it has no inputs"),
    ((np.ones(3), np.array(["a", "b", "c"])), "targets is text.*np.unique"),
    ([[1, 2], [3]], "different numbers of samples: inputs 2, targets 1"),
    (([[1, 2], [3]], [0, 1]), r"inputs\[1\] has length 1, inputs\[0\] has 2"),
    (({1: np.ones(3)}, np.ones(3)), r"it has inputs by \[1\]: expected names"),
    ((np.ones(3), [1, 2, np.inf]), r"targets\[2\] is inf"),
    ((np.ones(3), np.ones(3), [1, np.nan, 2]), r"weights\[1\] is nan"),
]


@pytest.mark.parametrize(("element", "words"), WRONG)
def test_what_is_no_batch(element, words):
    with pytest.raises(ValueError, match=words):
        batch_of(element)


FILE = """
import numpy as np
from tutorial_dl import data, replica

def load():
    def batches(epoch):
        for number in range(6):
            dice = np.random.default_rng((epoch, number))
            x = dice.standard_normal((10, 2)).astype("f4")
            yield x, (x[:, 0] > 0).astype(int)
    return data.stream(batches, {steps}), batches

def build():
    return replica.DenseReplica((2, 4, 2), "tanh", "cross_entropy")
"""


MINE = ["--model", "mine.py:build", "--data", "mine.py:load"]


def train(folder, *words):
    command = [sys.executable, "-m", "tutorial_dl", "train", "--quiet", *words]
    return subprocess.run(
        [*command, *MINE], cwd=folder, capture_output=True, text=True, timeout=600,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.thorough
def test_a_user_s_function_for_the_command_line(on_ranks, tmp_path):
    (tmp_path / "mine.py").write_text(FILE.format(steps="6"))
    found = {}
    for ranks in ("1", "2"):
        done = train(
            tmp_path, "-n", ranks, "--epochs", "2", "--json", "-", "--schedule", "cosine",
            "--batch-size", "50",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "batch_size=50 does not apply: data 'mine.py:load' is a stream" in done.stderr
        found[ranks] = json.loads(done.stdout)
    assert found["2"]["loss"] == pytest.approx(found["1"]["loss"], rel=1e-5)
    assert found["2"]["val_accuracy"] == found["1"]["val_accuracy"]
    assert found["1"]["batch_size"] == 10 and len(found["1"]["history"]) == 2
    (tmp_path / "mine.py").write_text(FILE.format(steps="None"))
    for words, line in (
        (["--schedule", "cosine"], "a schedule or a warm-up needs the number of batches per epoch"),
        (["--strategy", "downpour"], "'downpour' hands out samples by their number"),
        (["--validation", "0.2"], "validation_split takes samples of arrays"),
    ):
        status, said = told(on_ranks, 2, tmp_path, ["--quiet", *MINE, *words])
        assert status == 2 and line in said and said.count("\n") == 1


def test_a_generator_that_was_read_is_not_read_again():
    """The Trainer refuses it before it trains; a source refuses it, too."""
    source = source_of((np.ones((2, 1)), np.ones(2)) for _ in range(3))
    assert len(list(source.epoch(0))) == 3
    with pytest.raises(data.DataError, match="can be read only once: give the number of batches"):
        next(source.epoch(1))


def test_several_threads_keep_the_order_of_batches():
    class Numbers:
        num_batches, workers, max_queue_size = 20, 3, 6

        def __getitem__(self, i):
            return i

        def on_epoch_begin(self):
            pass

        on_epoch_end = on_epoch_begin

    assert list(ByNumber(Numbers()).epoch(0)) == list(range(20))
