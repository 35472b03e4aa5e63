"""Both lanes on a small project of their own: what runs where, and what is asked once more."""

from __future__ import annotations

import os
import re
import shutil
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
    shutil.copy(HERE.parent / "pyproject.toml", tmp_path)
    shutil.copytree(HERE / "support", tests / "support")

    def run(**files: str) -> tuple[int, str]:
        for name, content in files.items():
            (tests / "area" / f"test_{name}.py").write_text(content)
        call = [sys.executable, str(tests / "two_lanes.py"), "-q"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TESTS_")}
        done = subprocess.run(call, capture_output=True, text=True, timeout=120, env=environment)
        return done.returncode, done.stdout + done.stderr

    return run


def test_what_has_bounds_in_seconds_is_asked_once_more(lanes):
    status, printed = lanes(first=PASSES, timed=SLOW, beside=PASSES)
    assert status == 0 and "1 with bounds in seconds that failed" in printed, printed
    assert "area/test_timed.py::test_it" in printed.split("Once more")[1]


@pytest.mark.parametrize(
    ("files", "turns"),
    [
        ({"first": PASSES, "timed": FAILS, "beside": PASSES}, 2),
        ({"first": SLOW, "timed": PASSES, "beside": PASSES}, 1),
        ({"first": PASSES, "timed": PASSES, "beside": SLOW}, 1),
        ({"first": SLOW, "timed": SLOW, "beside": PASSES}, 1),
        ({"first": PASSES, "timed": "import nothing_of_that_name", "beside": PASSES}, 1),
    ],
)
def test_nothing_else_is(lanes, files, turns):
    status, printed = lanes(**files)
    assert status != 0 and printed.count("Once more") == turns - 1, printed


def test_all_that_passes(lanes):
    status, printed = lanes(first=PASSES, timed=PASSES, beside=PASSES)
    assert status == 0 and "2 passed" in printed and "1 passed" in printed, printed


def test_many_failures_are_no_matter_of_pace(lanes):
    many = SLOW + "".join(SLOW.split("\n", 1)[1].replace("it", f"it_{i}") for i in range(10))
    status, printed = lanes(first=PASSES, timed=many, beside=PASSES)
    assert status == 1 and "Once more" not in printed, printed
