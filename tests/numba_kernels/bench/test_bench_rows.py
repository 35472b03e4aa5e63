"""What the bench makes of measured times: rows of medians and ratios, tables, figures."""

import json
import sys

import numpy as np
import pytest

from numba_kernels import bench
from numba_kernels.bench import plot, timing
from numba_kernels.bench.rows import BEST, BY_MESSAGES, merge, row, table


def test_merge():
    def one(what, algorithm, ours, theirs):
        size, us = {"bytes": 100}, 1e-6
        ours, theirs = us * np.array(ours), us * np.array(theirs)
        return row(what, 2, size, algorithm, ours, "peer", theirs, 400, 1e8)  # limit 4 us

    starts = [
        [one(BY_MESSAGES, "ring", [1, 2, 9], [8, 8, 8]), one(BY_MESSAGES, "tree", [3], [8])],
        [one(BY_MESSAGES, "ring", [4, 4, 4], [20, 20, 2]), one(BY_MESSAGES, "tree", [3], [8])],
        [one(BY_MESSAGES, "ring", [5, 5, 5], [16, 16, 16]), one(BY_MESSAGES, "tree", [3], [8])],
    ]
    ring, tree, best = merge(starts)
    assert (ring["ours_us"], ring["peer_us"]) == pytest.approx((4, 16))  # of 2 4 5, of 8 20 16
    assert ring["ratio"] == pytest.approx(4)
    assert ring["ratio_from"] == pytest.approx(8 / 5)  # from 1 2 4 4 4 5 5 5 9 and 2 8 8 8 16 ...
    assert ring["ratio_to"] == pytest.approx(16 / 4)
    assert ring["fraction_of_limit"] == pytest.approx(1)
    assert ring["starts"] == 3 and ring["moved_bytes"] == 400
    assert best == tree | {"what": BEST}
    lines = table({"machine": "here", "load": 0.5, "rows": [ring, tree, best]}).splitlines()
    assert lines[0] == "here, load 0.5 before" and len(lines) == 5
    assert "ring" in lines[2] and "4.00" in lines[2]


def test_no_turn_begins_cold(monkeypatch):
    """The first call after another contestant is slow, with cold caches; it must not count."""
    monkeypatch.setattr(timing, "slowest", np.array)  # one rank alone
    clock = 0.0
    last = None
    barriers = []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock)

    def contestant(name, seconds):
        def call():
            nonlocal clock, last
            clock += seconds if last == name else 100 * seconds
            last = name

        return call

    calls = [contestant("a", 0.001), contestant("b", 0.003)]
    times = timing.interleaved(calls, lambda: barriers.append(clock), seconds=1.0, rounds=5)
    assert times.shape[1] == 2 and 3 <= len(times) <= 5
    np.testing.assert_allclose(times, np.tile([0.001, 0.003], (len(times), 1)), rtol=1e-9)
    assert len(barriers) > 2 * times.size  # one before the first batch and one after each
    started = clock
    timing.interleaved(calls, seconds=0.001, rounds=50)
    assert clock - started < 5  # 3 rounds are made, not 50


def test_net():
    cycle, nothing = np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.99, 4.0])
    np.testing.assert_allclose(timing.net(cycle, nothing), [2.0, 0.02, 0.01])
    np.testing.assert_allclose(timing.net(cycle, nothing, least=0.5), [2.0, 0.5, 0.5])


RESULT = {
    "machine": "a machine",
    "load": 0.0,
    "rows": [
        {
            "what": what, "ranks": 2, "bytes": nbytes, "algorithm": "shared_memory",
            "dtype": "float32", "ours_us": 2.0 * nbytes, "peer": "MPI", "peer_us": 5.0 * nbytes,
            "ratio": 2.5, "ratio_from": 2.0, "ratio_to": 3.0, "moved_bytes": 4 * nbytes,
            "fraction_of_limit": 0.5, "starts": 3,
        }
        for what, sizes in (("full", (1024, 2**20)), ("single", (64,)))
        for nbytes in sizes
    ],
}  # fmt: skip


def test_plot():
    figure = plot.figure_of(RESULT)
    curves, bars = figure.axes[:2]
    assert curves.get_title() == "full, 2 ranks" and bars.get_title() == "single, 2 ranks"
    lines = {line.get_label(): line.get_xydata().tolist() for line in curves.lines}
    assert lines["ours: shared_memory"] == [[1024, 2048], [2**20, 2 * 2**20]]
    assert lines["MPI"] == [[1024, 5120], [2**20, 5 * 2**20]]
    assert lines["bytes moved / copy bandwidth"] == [[1024, 1024], [2**20, 2**20]]
    assert [text.get_text() for text in curves.texts] == ["2.5×", "2.5×"]
    assert curves.get_xscale() == curves.get_yscale() == "log"
    assert [bar.get_height() for bar in bars.patches] == [128, 320]
    assert [plot.times(r) for r in (0.954, 4.26, 128.4)] == ["0.95×", "4.3×", "128×"]


def test_every_algorithm_stands_beside_its_own_peer():
    one = RESULT["rows"][-1]
    other = one | {"algorithm": "ring", "ours_us": 7.0, "peer_us": 9.0, "ratio": 1.29}
    bars = plot.figure_of(RESULT | {"rows": [one, other]}).axes[0]
    assert [bar.get_height() for bar in bars.patches] == [128, 320, 7, 9]
    assert [text.get_text() for text in bars.texts] == ["", "2.5×", "", "1.29×"]


def test_without_matplotlib_the_rows_are_not_lost(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "measure", lambda options: RESULT)
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    file = tmp_path / "rows.json"
    assert bench.main(["bench", "step", "--json", str(file)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(file.read_text()) == RESULT and "shared_memory" in out
    assert err.startswith(f"cannot plot to {tmp_path}/rows.png: ") and err.count("\n") == 1


def test_a_few_bytes():
    assert "  8 B  " in table(RESULT | {"rows": [RESULT["rows"][0] | {"bytes": 8}]})
