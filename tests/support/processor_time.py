"""A plugin that measures the processor time of each test, with that of all processes it starts.

    python -m pytest -p processor_time --numprocesses 4 --dist loadgroup --no-loadscope-reorder \\
        -m "not thorough"

At the end it lists the tests that took most, and the sum (without pytest's first process, and
without what ends when all tests have ended). Each worker of pytest-xdist has a control group of its
own, so this needs Linux and root. Ranks that are kept for later tests count where they work; what a
test is the first to import or to compile counts there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

SHOWN = 40
FIRST = "collecting the tests"  # and importing what their files import


class ControlGroup:
    """A control group that this process, and all that it starts, belong to (version 1 or 2)."""

    def __init__(self, name: str):
        top = Path("/sys/fs/cgroup")
        self.first = (top / "cpuacct").is_dir()
        self.folder = (top / "cpuacct" if self.first else top) / name
        self.folder.mkdir(exist_ok=True)
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """Return to the group above, and remove this one, if nothing that was started is left."""
        (self.folder.parent / "cgroup.procs").write_text(str(os.getpid()))
        with suppress(OSError):
            self.folder.rmdir()

    def seconds(self) -> float:
        """Processor time of all processes that were ever in the group."""
        if self.first:
            return int((self.folder / "cpuacct.usage").read_text()) / 1e9
        usage = (self.folder / "cpu.stat").read_text().split()
        return int(usage[usage.index("usage_usec") + 1]) / 1e6


class ProcessorTime:
    def __init__(self, config):
        self.tests: dict[str, float] = {}
        self.measures = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
        if self.measures:
            worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
            self.group = ControlGroup(f"tests-{os.getpid()}-{worker}")
            self.before = self.group.seconds()

    def since(self) -> float:
        before, self.before = self.before, self.group.seconds()
        return self.before - before

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        item.user_properties.append((FIRST, self.since()))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            item.user_properties.append((item.nodeid, self.since()))
        return (yield)

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            for name, seconds in report.user_properties:
                self.tests[name] = self.tests.get(name, 0.0) + seconds

    def pytest_unconfigure(self):
        if self.measures:
            self.group.leave()

    def pytest_terminal_summary(self, terminalreporter):
        rows = sorted(self.tests.items(), key=lambda row: -row[1])
        terminalreporter.section(f"processor time: {sum(self.tests.values()):,.0f} s")
        for name, seconds in rows[:SHOWN]:
            terminalreporter.write_line(f"{seconds:7.1f} s  {name}")


def pytest_configure(config):
    config.pluginmanager.register(ProcessorTime(config), "processor_time_of_tests")
