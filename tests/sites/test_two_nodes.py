"""`benchmarks between-nodes` as root: two network namespaces with a link between them."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

CODE = """
from benchmarks import __main__, between_nodes, step_between
between_nodes.BYTES, step_between.SIZES, __main__.STARTS = (8, 65536), (10_000,), 1
__main__.starts.__defaults__ = (1, None)
__main__.main()
"""
WORDS = [sys.executable, "-c", CODE, "between-nodes", "-n", "2"]


def namespaces():
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}


def folders(tmp_path):
    return list(Path(tmp_path).iterdir())


def test_ranks_talk_over_a_link(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = namespaces()
    done = subprocess.run(
        [*WORDS, "--seconds", "1", "--json", "-"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {one["what"].rpartition(", 1 Gbit/s")[0] for one in rows} == {
        "allreduce, 2 nodes",
        "synchronous step, 2 nodes",
    }
    assert all(one["ranks"] == 4 for one in rows)
    assert namespaces() == before and folders(tmp_path) == []


def test_a_bench_that_is_ended_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = namespaces()
    bench = subprocess.Popen([*WORDS, "--seconds", "100"], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 120
        while len(namespaces()) < len(before) + 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(namespaces()) == len(before) + 2
        bench.send_signal(signal.SIGTERM)
        bench.communicate(timeout=120)
    finally:
        bench.kill()
    assert bench.returncode == 128 + signal.SIGTERM
    assert namespaces() == before and folders(tmp_path) == []
