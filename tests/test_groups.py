"""How `make test` selects and distributes tests: the longest groups of tests begin."""

import os
import re
import subprocess
import sys
from pathlib import Path

import lazily
import pytest
import thorough

TEST = """
import os, pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("n", range(4))
def test_it(n):
    with open("workers", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""


@pytest.mark.thorough
def test_a_group_of_two_files_has_one_worker(tmp_path):
    """This fails with a pytest whose names of tests pytest-xdist does not understand."""
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    words = ["-m", "pytest", "-n", "2", "--dist", "loadgroup", "-p", "no:nbval"]
    subprocess.run(
        [sys.executable, *words], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
    )  # fmt: skip
    workers = (tmp_path / "workers").read_text().split()
    assert len(workers) == 8 and len(set(workers)) == 1


def test_the_longest_groups_are_there():
    tests = Path(__file__).parent
    text = (tests / "conftest.py").read_text()
    listed = re.search(r'LONGEST = """(.*?)"""', text, re.DOTALL)[1].split()
    files = {file.stem.removeprefix("test_") for file in tests.rglob("test_*.py")}
    assert set(listed) - files == {"keras", "here", "more_notebooks"}


def test_no_file_loads_tensorflow_when_it_is_collected():
    """All workers collect all files, and only the one that runs the tests of Keras needs it."""
    assert not lazily.LOADED, "put classes of Keras's layers, and calls, into functions"


def test_the_cases_that_markers_name_are_there():
    """Here and not when tests are collected, because a worker of pytest-xdist can't say why."""
    unknown = {test: names for test, names in thorough.UNKNOWN.items() if names}
    assert not unknown, "thorough(but=...) must name cases of its test"
