"""Both lanes on a small project of their own: what runs where, and what is asked once more."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PASSES = "def test_it():\n    pass\n"
FAILS = "def test_it():\n    raise AssertionError('always')\n"
# Too slow while another lane is there, in time without.
SLOW = "import os\ndef test_it():\n    assert 'TESTS_LANE' not in os.environ\n"


@pytest.fixture
def lanes(tmp_path):
    """lanes(first, timed, beside) -> (status, what was printed), each a test file's text"""
    tests = tmp_path / "tests"
    (tests / "area").mkdir(parents=True)
    text = (HERE / "two_lanes.py").read_text()
    for name, files in {"BESIDE": "area: beside", "TIMED": "area: timed"}.items():
        text, found = re.subn(
            rf'^{name} = """.*?"""', f'{name} = "{files}"', text, flags=re.M | re.S
        )
        assert found == 1
    (tests / "two_lanes.py").write_text(text)
    hook = (HERE / "conftest.py").read_text()
    hook = hook[hook.index("def pytest_runtest_logreport") : hook.index("@pytest.fixture")]
    (tests / "conftest.py").write_text(f"import os\n{hook}")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")

    def run(**files: str) -> tuple[int, str]:
        for name, content in files.items():
            (tests / "area" / f"test_{name}.py").write_text(content)
        plugins = ["no:nbval", "no:hypothesispytest", "no:anyio"]  # none is needed: be quick
        options = [word for plugin in plugins for word in ("-p", plugin)]
        call = [sys.executable, str(tests / "two_lanes.py"), "-q", *options]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TESTS_")}
        done = subprocess.run(call, capture_output=True, text=True, timeout=120, env=environment)
        return done.returncode, done.stdout + done.stderr

    return run


def test_what_has_bounds_in_seconds_is_asked_once_more(lanes):
    status, printed = lanes(first=PASSES, timed=SLOW, beside=PASSES)
    assert status == 0 and "1 with bounds in seconds that failed" in printed, printed
    assert "area/test_timed.py::test_it" in printed.split("Once more")[1]


def test_what_fails_again_has_failed(lanes):
    status, printed = lanes(first=PASSES, timed=FAILS, beside=PASSES)
    assert status == 1 and printed.count("Once more") == 1, printed


def test_what_fails_beside_is_final(lanes):
    status, printed = lanes(first=PASSES, timed=SLOW, beside=SLOW)
    assert status == 1 and "Once more" not in printed, printed


def test_a_file_that_cannot_be_read_is_final(lanes):
    status, printed = lanes(first="import nothing_of_that_name", timed=SLOW, beside=PASSES)
    assert status == 2 and "Once more" not in printed, printed


def test_few_and_all_of_them_timed():
    spec = importlib.util.spec_from_file_location("two_lanes", HERE / "two_lanes.py")
    two_lanes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(two_lanes)

    timed, other = (
        "tests/numba_kernels/test_star.py::test_it[1]",
        "tests/tutorial_dl/test_data.py::t",
    )
    assert two_lanes.asked_again([timed]) == [timed]
    assert two_lanes.asked_again([timed, other]) == []
    assert two_lanes.asked_again([timed] * 11) == []
