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
