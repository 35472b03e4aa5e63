"""`make soak`: bounds in seconds and repetition, on a quiet machine; it prints a table of results.

Tests here call the same functions as the tests of the same name in other folders. They assert
bounds on the times that those only note (support/clock.py), or repeat a test more often.
"""

from __future__ import annotations

import os
from pathlib import Path

import clock
import preloaded
import pytest
from modules import load

os.environ.pop("MPIR_CVAR_ENABLE_HEAVY_YIELD", None)  # ranks wait as a user's do,
preloaded.ASLEEP.clear()  # those of `on_ranks`, too
ROWS: list[tuple[str, str, str, bool]] = []  # what, asked, measured, whether it is ok
SHOWN: set[str] = set()  # tests whose failure is one of these


def pytest_configure(config):
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("soak tests measure: one after the other, without --numprocesses")


@pytest.fixture(scope="session", autouse=True)
def _clock_file(tmp_path_factory) -> Path:
    """One file for all tests, because ranks that are kept have its name in their environment."""
    file = tmp_path_factory.mktemp("clock") / "clock"
    os.environ[clock.FILE] = str(file)
    yield file
    del os.environ[clock.FILE]


@pytest.fixture(autouse=True)
def clock_file(_clock_file) -> Path:
    """The file of what this process, or one that it starts, notes during this test."""
    _clock_file.write_text("")
    return _clock_file


@pytest.fixture
def record(request):
    """record(what, asked, measured, ok) adds a line to the table, and fails the test unless ok."""

    def add(what: str, asked: str, measured: str, ok: bool) -> None:
        ROWS.append((what, asked, measured, bool(ok)))
        if not ok:
            SHOWN.add(request.node.nodeid)
        assert ok, f"{what}: asked {asked}, measured {measured}"

    return add


@pytest.fixture
def bound(record, clock_file):
    """bound(what, most): every value noted as `what` in this test is less than `most`."""

    def check(what: str, most: float, unit: str = "s", of: str = "") -> None:
        values = clock.noted(clock_file, what)
        assert values, f"nothing was noted as {what!r}"
        measured = f"{max(values):.3g} {unit}" + (f" ({len(values)})" if len(values) > 1 else "")
        record(f"{what}{of and f', {of}'}", f"< {most:g} {unit}", measured, max(values) < most)

    return check


@pytest.fixture(scope="session")
def tests():
    """tests("test_failures") -> the module of that name."""
    return load


def pytest_runtest_logreport(report):
    """Add a line for a test that failed for another reason."""
    if report.failed and report.nodeid not in SHOWN:
        ROWS.append((report.nodeid.split("::", 1)[-1], "no error", report.when + " failed", False))


def pytest_terminal_summary(terminalreporter):
    if not ROWS:
        return
    rows = [("what", "asked", "measured", "ok")]
    rows += [(*row[:3], "yes" if row[3] else "NO") for row in ROWS]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[2]
    terminalreporter.section("results")
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        terminalreporter.write_line(line.rstrip())
    terminalreporter.write_line(f"on {cores} cores; load of the last 15 minutes {load:.1f}")
