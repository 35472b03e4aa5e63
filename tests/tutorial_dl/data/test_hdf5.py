"""HDF5 files as data: every sample once on any number of ranks, in bounded memory, read ahead."""

import threading
import time
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from tutorial_dl import data
from tutorial_dl.data import Batches, DataError, Hdf5Data, blocks, hdf5_files
from tutorial_dl.data.ahead import Waited, ahead

LENGTHS = (0, 1, 999, 1000)


def write(path, first, n, width=3, **options):
    """Write a file of numbered samples: features (n, width) are the number, labels number % 3."""
    numbers = np.arange(first, first + n)
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "features", data=np.repeat(numbers[:, None], width, 1).astype("f4"), **options
        )
        file["labels"] = numbers % 3
    return path


@pytest.fixture
def files(tmp_path):
    """Files of 0, 1, 999 and 1000 samples, with consecutive numbers."""
    starts = np.cumsum((0, *LENGTHS))
    return [write(tmp_path / f"{i}.h5", starts[i], n) for i, n in enumerate(LENGTHS)]


def stored(files, window=1 << 20, **names):
    """All samples of the files; none is kept out for validation."""
    table = hdf5_files.look(files, ["features", "labels"])
    return Hdf5Data(table, "features", "labels", window=window)


def rounds(samples, ranks, batch_size, epoch=0, start=0, **options):
    """The samples of each round: one array of numbers, joined in rank order."""
    shares = []
    for rank in range(ranks):
        batches = Batches(samples, batch_size, rank=rank, ranks=ranks, **options)
        got = [(x.copy(), y.copy()) for x, y in batches.epoch(epoch, start)]
        for x, y in got:
            assert (x == x[:, :1]).all() and x.dtype == np.float32
            np.testing.assert_array_equal(x[:, 0] % 3, y)  # labels stay with their features
        shares.append([x[:, 0].astype(int) for x, _ in got])
    sizes = [[len(x) for x in one] for one in zip(*shares, strict=True)]
    assert all(max(one) - min(one) <= 1 for one in sizes)
    return [np.concatenate(one) for one in zip(*shares, strict=True)]


@pytest.mark.parametrize("window", [20, 5000, 1 << 20])  # bytes of 1 sample, of 250 samples, of all
def test_every_sample_once_and_the_same_batches_on_any_number_of_ranks(files, window):
    samples = stored(files, window)
    assert len(samples) == 2000
    for epoch, batch_size in ((0, 32), (1, 77)):
        serial = rounds(samples, 1, batch_size, epoch)
        assert len(serial) == -(-2000 // batch_size)
        assert [len(b) for b in serial[:-1]] == [batch_size] * (len(serial) - 1)
        order = Batches(samples, batch_size).order(epoch)
        np.testing.assert_array_equal(np.concatenate(serial), order)
        np.testing.assert_array_equal(np.sort(order), np.arange(2000))
        for ranks in (2, 3, 4, 5):
            together = rounds(samples, ranks, batch_size, epoch)
            for one, other in zip(serial, together, strict=True):
                np.testing.assert_array_equal(one, other)


def test_an_epoch_goes_on_in_its_middle_and_reads_nothing_before(files, monkeypatch):
    samples = stored(files, 5000)
    whole = rounds(samples, 2, 32, epoch=3)
    read = reads(monkeypatch)
    for start in (0, 1, 7, 30, 62, 63):
        read.clear()
        rest = rounds(samples, 2, 32, epoch=3, start=start)
        assert [b.tolist() for b in rest] == [b.tolist() for b in whole[start:]]
        assert sum(last - first for _, name, first, last in read if name == "labels") == sum(
            len(b) for b in rest
        )


def reads(monkeypatch):
    """A list that gets (file, name, first, last) of every read from now on."""
    monkeypatch.setattr(hdf5_files, "GAP", 0)  # a read must be needed
    read, stretch = [], hdf5_files.Reader._stretch
    monkeypatch.setattr(hdf5_files.Reader, "_stretch", lambda *a: read.append(a[1:]) or stretch(*a))
    return read


def test_ranks_share_out_the_reading(tmp_path, monkeypatch):
    """In an epoch, p ranks together read every sample once, in few long stretches."""
    n, batch_size, piece = 4096, 32, 64
    file = write(tmp_path / "a.h5", 0, n, width=126)  # 512 bytes per sample with its label
    monkeypatch.setattr(hdf5_files, "PIECE", piece * 512)
    samples = stored([file], window=1024 * 512)
    read = reads(monkeypatch)
    for ranks in (1, 2, 4):
        read.clear()
        rounds(samples, ranks, batch_size)
        counts = np.zeros(n, int)
        for _, name, first, last in read:
            counts[first:last] += name == "features"
        np.testing.assert_array_equal(counts, 1)
        # A block has n / 256 = 16 samples; a rank's part of a window may begin and end within one.
        assert len(read) / 2 <= n / 16 + 4 * 2 * ranks


def test_a_batch_takes_one_sample_of_each_stratum():
    """With 3 classes in order and batches of 3 b, every batch has exactly b of each class."""
    random = np.random.default_rng(0)
    order = blocks.mixed(np.arange(3 * 50 * 8), 3 * 8, random).reshape(50, 24)
    np.testing.assert_array_equal(order // 50, np.tile(np.arange(24), (50, 1)))  # strata of 50
    assert (np.bincount(order.ravel()) == 1).all()
    # 167 = 24 * 6 + 23: there are 23 strata of 7 and one of 6, so six whole batches and one of 23.
    ragged = blocks.mixed(np.arange(167), 24, random)
    stratum = np.searchsorted([167 * (j + 1) // 24 for j in range(24)], ragged, side="right")
    assert [sorted(stratum[i : i + 24]) for i in range(0, 144, 24)] == [list(range(24))] * 6
    assert len(set(stratum[144:])) == 23
    assert len(ragged[144:]) == 23 and sorted(ragged) == list(range(167))
    # Each of 50 is equally likely in each batch: 40 times in 2000 draws, +- 5 sigma (31).
    counts = np.zeros(50)
    for _ in range(2000):
        counts[np.flatnonzero(blocks.mixed(np.arange(100), 2, random)[::2] == 17)] += 1
    assert counts.sum() == 2000 and np.abs(counts - 40).max() < 32


def test_windows_mix_blocks_from_everywhere():
    """Each of 10 windows of 64 blocks has samples from all tenths of the data."""
    first, length = np.arange(640) * 10, np.full(640, 10)
    cut = list(blocks.windows(first, length, 640, 32, (0, 0)))
    assert [len(w) for w in cut] == [640] * 10
    np.testing.assert_array_equal(np.sort(np.concatenate(cut)), np.arange(6400))
    for window in cut:
        assert len(set(window // 640)) == 10 and len(set(window // 10)) == 64
    assert len(set(cut[0][:32].tolist())) == 32
    # With one block per window, only the mixing differs by seed, epoch and window.
    one = [
        tuple(w % 50)
        for seed in ((0, 0), (0, 1), (1, 0))
        for w in blocks.windows(np.array([0]), np.array([100]), 50, 10, seed)
    ]
    assert len(set(one)) == 6
    for window in blocks.windows(first, length, 640, 100, None):  # in file order; 6 batches of 100
        assert (np.diff(window) == 1).all() and len(window) in (600, 400)


def test_kept_out_for_validation(files):
    dataset = data.load(files)
    train, kept = dataset.train, dataset.validation
    assert (len(train), len(kept), dataset.classes) == (1600, 400, 3)
    numbers = [p.take(slice(None))[0][:, 0].astype(int) for p in (train, kept)]
    np.testing.assert_array_equal(np.sort(np.concatenate(numbers)), np.arange(2000))
    # 256 stretches of 1 or 2 at equal distances: of any 200 neighbours, 38 to 42 are kept out.
    every = np.bincount(numbers[1] // 200, minlength=10)
    assert np.abs(every - 40).max() <= 2
    for epoch in range(3):  # blocks that begin or end where a stretch is kept out
        batches = rounds(train, 2, 32, epoch)
        np.testing.assert_array_equal(np.sort(np.concatenate(batches)), np.sort(numbers[0]))
    again = data.load(files, validation=0.2).validation
    np.testing.assert_array_equal(again.take(slice(None))[0], kept.take(slice(None))[0])
    for share, n in ((0.001, 2), (0.5, 1000), (0.99, 1980)):
        parts = stored(files).split(share)
        assert [len(p) for p in parts] == [2000 - n, n]
        joined = np.concatenate([p.take(slice(None))[0][:, 0] for p in parts])
        np.testing.assert_array_equal(np.sort(joined), np.arange(2000))
    shards = [data.shard(kept, r, 3) for r in range(3)]
    together = np.concatenate([b[0][:, 0] for s in shards for b in Batches(s, 64).epoch(1)])
    np.testing.assert_array_equal(np.sort(together), np.sort(numbers[1]))


def test_take_is_what_h5py_reads(files):
    samples = stored(files)
    indices = np.array([1999, 0, 3, 3, -1, 1000, 999, 1])
    x, y = samples.take(indices)
    numbers = indices % 2000
    np.testing.assert_array_equal(x, np.repeat(numbers[:, None], 3, 1))
    np.testing.assert_array_equal(y, numbers % 3)
    assert samples.take(slice(998, 1003))[0][:, 0].tolist() == [998, 999, 1000, 1001, 1002]
    assert samples.take(np.array([5, 7, 7]))[0][:, 0].tolist() == [5, 7, 7]
    assert samples.take(np.array([], int))[0].shape == (0, 3)
    with pytest.raises(IndexError, match="must be below 2000, got 5 to 2000"):
        samples.take(np.array([5, 2000]))
    labels = samples.targets
    assert (labels.shape, labels.ndim, labels.size, labels.dtype) == ((2000,), 1, 2000, "i8")
    assert (labels.min(), labels.max(), labels.argmin(), labels.argmax()) == (0, 2, 0, 2)


def test_however_it_is_stored(tmp_path):
    for options in (
        {"chunks": (7, 2), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (100, 3)},
        {"dtype": ">f4"},
    ):
        samples = stored([write(tmp_path / "a.h5", 0, 333, **options)], 1000)
        assert samples.inputs.dtype == np.dtype("f4")
        got = np.sort(np.concatenate(rounds(samples, 2, 10)))
        np.testing.assert_array_equal(got, np.arange(333))


def test_several_inputs_and_files_to_validate_on(tmp_path):
    for name, n in (("a", 50), ("b", 20)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["image/pixels"] = np.arange(n * 4.0).reshape(n, 2, 2)
            file["angle"], file["y"] = np.arange(n) / 2, np.arange(n) % 4
    a, b = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    options = dict(labels="y", validation=b)
    two = data.load(a, features="image/pixels,angle", **options)
    assert two.inputs_shape == ((2, 2), ()) and two.classes == 4
    assert len(two.train) == 50 and len(two.validation) == 20
    (image, angle), y = two.train.take(np.array([7]))
    assert image.tolist() == [[[28, 29], [30, 31]]] and (angle, y) == (3.5, 3)
    for features in ("x=image/pixels,z=angle", {"x": "image/pixels", "z": "angle"}):
        named = data.load(a, features=features, **options)
        assert named.inputs_shape == {"x": (2, 2), "z": ()}
        inputs, _ = next(Batches(named.validation, 20, shuffle=False).epoch())
        assert inputs["z"].tolist() == (np.arange(20) / 2).tolist()
    with pytest.raises(ValueError, match=r"features 'a,': expected NAME, NAME,NAME or INPUT=NAME"):
        data.load(a, features="a,", **options)


def test_written_and_read_again(tmp_path):
    digits = data.digits()
    parts = [data.shard(digits.train, i, 3) for i in range(3)]
    for i, part in enumerate(parts):
        data.write_hdf5(part, tmp_path / f"{i}.h5", compression="gzip")
    assert data.load(str(tmp_path / "*.h5"), validation=0).validation is None
    again = data.load(str(tmp_path / "*.h5"), validation=0.1)
    assert again.classes == 10 and len(again.train) + len(again.validation) == 1437
    x, y = stored([tmp_path / f"{i}.h5" for i in range(3)]).take(slice(None))
    np.testing.assert_array_equal(x, digits.train.inputs)
    np.testing.assert_array_equal(y, digits.train.targets)
    two = data.Data.of({"u": np.arange(5.0), "v": np.arange(5)}, np.zeros(5))
    data.write_hdf5(two, tmp_path / "two", features="u=a,v=b", labels="c")
    with h5py.File(tmp_path / "two") as file:
        assert {k: v[:].tolist() for k, v in file.items()} == {
            "a": [0, 1, 2, 3, 4], "b": [0, 1, 2, 3, 4], "c": [0] * 5
        }  # fmt: skip
    for features in ("u=a", "a,b", "u=a,w=b"):
        with pytest.raises(ValueError, match=r"don't fit the data's inputs: expected one for each"):
            data.write_hdf5(two, tmp_path / "two", features=features)
    with pytest.raises(ValueError, match="labels, labels: expected each name only once"):
        data.write_hdf5(digits.train, tmp_path / "two", features="labels")
    data.write_hdf5(stored([tmp_path / "1.h5"]), tmp_path / "copy")  # from a file to a file
    np.testing.assert_array_equal(stored([tmp_path / "copy"]).take(slice(None))[0], parts[1].inputs)
    assert not list(tmp_path.glob("*.part"))


def test_memory_is_bounded_by_the_window_not_by_the_data(tmp_path):
    """64 MiB of samples in windows of 2 MiB need memory for two windows, pieces and batches."""
    n, window = 8192, 2 << 20
    file = write(tmp_path / "a.h5", 0, n, width=2046)  # 8 KiB a sample
    samples = stored([file], window)
    for shuffle in (True, False):
        seen = 0
        tracemalloc.start()
        try:
            for x, _ in Batches(samples, 64, shuffle=shuffle).epoch():
                seen += len(x)
                time.sleep(1e-4)  # time for the thread to read ahead as far as it may
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert seen == n
        assert window < peak < 2 * window + (2 << 20) + 2 * 64 * 8192 + (1 << 18)


def resident():
    """The bytes of this process that are in memory now."""
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def test_what_hdf5_itself_holds_is_bounded_too(tmp_path):
    """Bounds the C library's memory, which Python does not count: 96 MiB compressed, 20 files."""
    files = [
        write(tmp_path / f"{i}.h5", 0, 600, width=2046, chunks=(50, 2046), compression=1)
        for i in range(20)
    ]
    samples = stored(files, 2 << 20)
    most = 0
    list(zip(range(3), Batches(samples, 64).epoch(1), strict=False))  # loads what it needs
    before = resident()
    for _ in Batches(samples, 64).epoch(0):
        most = max(most, resident() - before)
    assert most < 40 << 20


@contextmanager
def no_thread_left():
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + 100
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left


def test_the_thread_ends_with_the_epoch_also_when_it_is_left(files):
    batches = Batches(stored(files, 2000), 32)
    with no_thread_left():
        for _ in batches.epoch():
            break
    with no_thread_left():
        assert len(list(batches.epoch())) == 63
    with no_thread_left():
        running = batches.epoch()
        next(running)
        assert any(t.name == "reading ahead" for t in threading.enumerate())
        batches.close()
        with pytest.raises(StopIteration):
            next(running)


def test_a_part_that_cannot_be_read_is_named_when_its_turn_comes(tmp_path):
    good = write(tmp_path / "good.h5", 0, 400)
    bad = write(tmp_path / "bad.h5", 400, 400, chunks=(50, 3), fletcher32=True)
    with h5py.File(bad) as file:
        chunk = file["features"].id.get_chunk_info(3)  # samples 150 to 199
    with open(bad, "r+b") as file:
        file.seek(chunk.byte_offset + 5)
        file.write(b"\xff\xff")
    samples = stored([good, bad], 400)
    seen = []
    message = r"bad.h5: 'features' can't be read, samples 140 to 159: .*"  # the window of 20
    with no_thread_left(), pytest.raises(DataError, match=message) as error:
        for x, _ in Batches(samples, 20, shuffle=False).epoch():
            seen.append(x[:, 0])
    assert "\n" not in str(error.value)
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(sum(map(len, seen))))
    assert sum(map(len, seen)) == 540  # all before it


def test_files_that_change_during_training(files):
    samples = stored(files)
    write(files[3], 0, 1001)
    with pytest.raises(DataError, match=r"3.h5: it has changed since training began"):
        list(Batches(samples, 32).epoch())
    files[3].unlink()
    with pytest.raises(DataError, match=r"3.h5: there is no such file"):
        list(Batches(samples, 32).epoch())


# The thread alone


@contextmanager
def plain(check, work=lambda x: x):
    yield work


def test_ahead_keeps_order_and_never_more_than_two_results():
    alive, most = [], []

    class Result:
        def __init__(self, number):
            self.number = number
            alive.append(number)
            most.append(len(alive))

        def __del__(self):
            alive.remove(self.number)

    seen = []
    results = ahead(range(20), lambda check: plain(check, Result))
    for result in results:
        seen.append(result.number)
        time.sleep(0.002)
        del result
    assert seen == list(range(20)) and max(most) == 2


def test_ahead_raises_what_the_thread_raised_after_the_results_before_it():
    def work(x):
        if x == 3:
            raise KeyError("three")
        return x

    seen = []
    with no_thread_left(), pytest.raises(KeyError, match="three"):
        for result in ahead(range(9), lambda check: plain(check, work)):
            seen.append(result)
    assert seen == [0, 1, 2]


def test_ahead_gives_up_a_result_that_never_comes():
    held = threading.Event()
    with no_thread_left():
        results = ahead([1], lambda check: plain(check, lambda x: held.wait(60)), seconds=0.5)
        threading.Timer(1.5, held.set).start()
        with pytest.raises(Waited, match=r"nothing came for 0\.5 s"):
            next(results)
