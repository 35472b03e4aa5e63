"""The bench command: what it writes, and what it refuses. (How fast we are is not a test.)"""

import json
import subprocess
import sys

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


def test_wrong_words():
    assert "--seconds -1.0: more than 0" in bench("step", "--seconds", "-1").stderr
    assert "invalid choice: 'nosuch'" in bench("nosuch").stderr
    done = bench("allreduce", "-n", "0")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: number of ranks is 0: from 1 to 1024 is right"
