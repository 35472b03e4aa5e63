"""For all tests: ranks under mpiexec (`on_ranks`), and nothing may be left behind by any test."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

# tests/ is no package, so that no test's name can clash with an installed one.
sys.path.insert(0, str(Path(__file__).parent / "support"))

import leftovers
from clusters import (  # noqa: F401  (fixtures)
    _kept_clusters,
    own_cluster,
    shared_cluster,
)
from on_ranks import on_ranks  # noqa: F401  (the fixture)
from private_files import private  # noqa: F401  (the fixture)
from worlds import WORLDS


def pytest_runtest_logreport(report):
    """The names of what fails, a line each, in the file that two_lanes.py asks for."""
    if report.failed and (path := os.environ.get("TESTS_FAILED")):
        with open(path, "a") as file:
            file.write(f"{report.nodeid}\n")


@pytest.fixture(scope="session")
def mark() -> str:
    """What every process that this session starts carries in its environment."""
    return uuid.uuid4().hex


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_works():
    """A shell has what it starts in the background (`make test &`) ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _marked(mark):
    os.environ[leftovers.VARIABLE] = mark
    # With it Python writes a line in pieces, and those of several ranks mix.
    os.environ.pop("PYTHONUNBUFFERED", None)
    yield
    problems = WORLDS.end()
    del os.environ[leftovers.VARIABLE]
    assert not problems, "\n".join(problems)


@pytest.fixture(autouse=True)
def nothing_left(_marked, mark):
    """Fails a test that leaves a process or a file in shared memory, and ends such processes."""
    known = {process.pid for process in leftovers.processes(mark)}
    before = leftovers.segments()
    yield
    left = leftovers.check(mark, known | WORLDS.pids(), before)
    assert not left, "left behind:\n" + "\n".join(left)
