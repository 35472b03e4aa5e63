"""The output at the end of a failing run, tested on small projects with and without xdist."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"
HELPER = """
def on_ranks():
    said = "".join(f"rank 1 writes line {i}\\n" for i in range(300))
    raise AssertionError(f"on 2 ranks:\\nrank 1: ValueError: of rank 1\\n{said}last line of all")
"""
RANKS = "from helper import on_ranks\ndef test_ranks():\n    on_ranks()\n"
FAILS = """
import pytest

@pytest.mark.parametrize("n", range({n}))
def test_it(n):
    some = list(range(100))
    assert n == -1, "\\n".join(map(str, some))
"""
WAITS = "import pathlib, time\ndef test_waits():\n    pathlib.Path('on').touch(); time.sleep(600)\n"
BREAKS = "import os\ndef test_breaks():\n    os._exit(3)\n"
# Says when pytest, and not only its worker, knows that a test runs.
TOLD = """
import os, pathlib, pytest
@pytest.hookimpl(trylast=True)
def pytest_runtest_logstart():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pathlib.Path("told").touch()
"""
INTERNAL = "def pytest_runtest_protocol(item):\n    raise ZeroDivisionError('in a hook')\n"


@pytest.fixture
def project(tmp_path):
    """project(workers, name=content) -> a Popen of pytest in its own folder"""
    ini = f"[pytest]\naddopts = -ra -p last_words\npythonpath = {SUPPORT} .\n"
    (tmp_path / "pytest.ini").write_text(ini)
    begun = []

    def begin(workers=0, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.py").write_text(content)
        words = ["-n", str(workers)] if workers else []
        words += [word for name in ("nbval", "hypothesispytest", "anyio", "cacheprovider")
                  for word in ("-p", f"no:{name}")]  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words], cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        )  # fmt: skip
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.wait()


def end_of(process, status=1) -> str:
    """The lines that the process printed after the one that counts the failures."""
    out, _ = process.communicate(timeout=300)
    assert process.returncode == status, out
    _, header, end = out.rpartition("\nfailed: ")
    assert header and end.count("\n") <= 50, out
    return end


@pytest.mark.parametrize("workers", [0, 2])
def test_one_failure_with_its_ranks(project, workers):
    files = {"helper": HELPER, "test_ranks": RANKS, "test_fine": "def test_it(): pass"}
    end = end_of(project(workers, **files))
    lines = end.splitlines()
    assert lines[0] == "1" and lines[1] == "FAILED test_ranks.py::test_ranks"
    assert lines[2].strip() == "test_ranks.py:3: on_ranks()"
    assert lines[3].strip() == "AssertionError: on 2 ranks:"
    assert "rank 1: ValueError: of rank 1" in lines[4]
    assert lines[-1].strip() == "last line of all" and 20 < len(lines) <= 41


@pytest.mark.parametrize(("n", "each"), [(10, 4), (3, 16), (13, 1), (80, 1)])
def test_failures_share_the_lines(project, n, each):
    lines = end_of(project(test_it=FAILS.format(n=n))).splitlines()
    names = [line for line in lines if line.startswith("FAILED test_it.py::test_it[")]
    assert lines[0] == str(n) and len(lines) <= 50
    if n <= 12:
        assert len(names) == n and len(lines) - 1 == n * each
        assert sum("test_it.py:7: assert n == -1" in line for line in lines) == n
    elif n < 50:
        assert len(names) == n == len(lines) - 1
    else:
        assert lines[-1] == f"... and {n - len(names)} more" and len(names) > 40


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_cannot_be_read(project, workers):
    end = end_of(project(workers, test_wrong="import nothing_of_that_name"), 1 if workers else 2)
    assert "FAILED test_wrong.py (collection)" in end
    assert "ModuleNotFoundError: No module named 'nothing_of_that_name'" in end


def test_a_worker_that_crashes(project):
    end = end_of(project(2, test_breaks=BREAKS))
    assert re.search(r"FAILED test_breaks.py(::test_breaks)?", end) and "crashed" in end


@pytest.mark.parametrize("workers", [0, 2])
def test_an_internal_error(project, workers):
    process = project(workers, conftest=INTERNAL, test_fine="def test_it(): pass")
    out, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    end = out.rpartition("\nfailed: ")[2]
    assert "pytest itself (internal error)" in end and "ZeroDivisionError: in a hook" in end, out


@pytest.mark.thorough(but="15-0")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped(project, tmp_path, workers, number):
    """A run is stopped, as by a time limit: its last lines name the tests that were running."""
    process = project(workers, test_waits=WAITS, conftest=TOLD)
    while not ((tmp_path / "on").exists() and (tmp_path / "told").exists()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == (143 if number == signal.SIGTERM else 2), out
    by = "SIGTERM" if number == signal.SIGTERM else "Ctrl-C"
    last = f"stopped by {by}\nwas running: test_waits.py::test_waits\n"
    assert last in out and len(out.rpartition(last)[2].splitlines()) <= 1, out  # pytest's own


def test_nothing_is_said_where_nothing_failed(project):
    out, _ = project(test_fine="def test_it(): pass").communicate(timeout=300)
    assert "1 passed" in out.splitlines()[-1]
