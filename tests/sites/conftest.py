"""`make sites`: our package on a real Slurm, which the fixture `slurm` brings up (slurm_site.py).

Pytest runs this folder only if it is named. It needs root, and Slurm's and munge's programs.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import slurm_site


def pytest_configure(config):
    if lacks := slurm_site.missing():
        raise pytest.UsageError(lacks)
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("tests of sites share one Slurm: run them without --numprocesses")


ROWS: list[str] = []  # what was measured


@pytest.fixture
def bound():
    """bound(what, seconds, most) notes a time for the table at the end, and asserts it."""

    def check(what: str, seconds: float, most: float) -> None:
        ROWS.append(f"{seconds:6.2f} s  (at most {most:g})  {what}")
        assert seconds < most, ROWS[-1]

    return check


def pytest_terminal_summary(terminalreporter):
    if ROWS:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(ROWS))


@pytest.fixture(scope="session")
def _site():
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    site = slurm_site.Site(folder)
    try:
        site.start()
        yield site
    finally:
        left = site.stop()
        shutil.rmtree(folder)
    assert not left, "left behind:\n" + "\n".join(left)


@pytest.fixture
def slurm(_site):
    """The running Slurm; a test must leave neither jobs, processes nor shared memory there."""
    yield _site
    left = _site.left()
    assert not left, "left behind:\n" + "\n".join(left)
