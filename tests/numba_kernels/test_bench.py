"""The bench command: what it writes, and what it refuses. (How fast we are is not a test.)"""

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest


def bench(*words, timeout=120):
    return subprocess.run(
        [sys.executable, "-m", "numba_kernels", "bench", *words],
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


FIELDS = {"what", "ranks", "algorithm", "dtype", "ours_us", "peer", "peer_us", "ratio"}


@pytest.mark.parametrize(("what", "size"), [("allreduce", "bytes"), ("step", "parameters")])
def test_rows(what, size, tmp_path):
    file = tmp_path / "rows.json"
    done = bench(what, "-n", "2", "--seconds", "1", "--json", str(file))
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert "cores" in result["machine"] and len(result["rows"]) >= 6
    for row in result["rows"]:
        assert row.keys() >= FIELDS | {size, "fraction_of_limit"} and row["ranks"] == 2
        assert row["ours_us"] > 0 and row[size] > 0
        assert row["ratio_from"] <= row["ratio"] <= row["ratio_to"]
    assert done.stdout.count("\n") == len(result["rows"]) + 2  # a line a row, below two of head


def rows_of_optimizers():
    """As it runs where neither Keras nor torch is installed."""
    from numba_kernels.bench import optimizers as bench_of

    bench_of.importlib.util.find_spec = lambda name: None
    bench_of.SIZES, bench_of.LARGE = (1000, 2000), 3000
    rows = bench_of.rows(1.0)
    sizes = {(row["algorithm"], row["parameters"]) for row in rows}
    four = ("sgd", "momentum", "adam", "lars")
    assert sizes >= {(name, n) for name in four for n in (1000, 2000)} | {("adam", 3000)}
    assert {row["peer"] for row in rows} == {"numpy"}
    assert all(row.keys() >= FIELDS | {"parameters"} and row["ours_us"] > 0 for row in rows)


def test_rows_of_optimizers(on_ranks):
    on_ranks(1, rows_of_optimizers)


def test_peers_do_the_same_update():
    """A peer that did less would look fast: three updates of ours and of numpy's end alike."""
    from numba_kernels.bench import optimizers as bench_of

    for name in ("sgd", "momentum", "lars"):
        ours, numpys = bench_of.our_update(name, 100), bench_of.numpy_update(name, 100)
        for _ in range(3):
            ours()
            numpys()
        ends = [inspect.getclosurevars(update).nonlocals["w"] for update in (ours, numpys)]
        np.testing.assert_allclose(*ends, rtol=1e-6)


def test_wrong_words():
    assert "--seconds -1.0: more than 0" in bench("step", "--seconds", "-1").stderr
    assert "invalid choice: 'nosuch'" in bench("nosuch").stderr
    done = bench("allreduce", "-n", "0")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: number of ranks is 0: from 1 to 1024 is right"
