"""A failing run prints last what failed, in a block of at most `LINES` lines.

A log is often cut to its end. So the block names each failing test once more, with the line of
the test, the assertion, and the last output of its ranks. One failure has up to 40 lines, ten have
4 each, and of more than a dozen only the names are shown. Errors in collecting tests, crashed
workers of pytest-xdist and internal errors are shown alike. A run that is stopped (SIGTERM, as a
time limit sends it, or Ctrl-C) ends with the names of the tests that were running.
"""

from __future__ import annotations

import re
import signal
import threading

import pytest

LINES = 50
OF_ONE = 40  # lines for one failure at most, including its name
NAMED = 12  # with more failures than these, only names
WIDTH = 200
# If a text is too long, these lines are shown first: "rank 1: ...", "ValueError: ...".
TELLING = re.compile(
    r"^(ranks? [\d\[][\d, \]]*:|[\w.]*(Error|Exception|Interrupt|Fault|Exit)\b|assert )"
)


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # in a worker of pytest-xdist, whose main process reports
        return
    config.pluginmanager.register(LastWords(config), "last_words_of_the_run")


class LastWords:
    """Collects failing and running tests of one run, and prints them when it ends."""

    def __init__(self, config):
        self.config = config
        self.failed: dict[str, list[str]] = {}  # name -> lines that say why
        self.running: dict[str, None] = {}
        self.stopped = ""
        self._before = None

    # What happens

    def pytest_sessionstart(self, session):
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, number, frame):
        self.stopped = "SIGTERM"
        pytest.exit("stopped by SIGTERM", returncode=128 + signal.SIGTERM)

    def pytest_keyboard_interrupt(self, excinfo):
        if excinfo.type is KeyboardInterrupt:  # pytest's others: -x, --maxfail
            self.stopped = "Ctrl-C"

    def pytest_runtest_logstart(self, nodeid):
        self.running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid):
        self.running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            when = "" if report.when == "call" else f" ({report.when})"
            self.note(f"{report.nodeid}{when}", why(report))

    def pytest_collectreport(self, report):
        if report.failed:
            self.note(f"{report.nodeid} (collection)", why(report))

    def pytest_internalerror(self, excrepr):
        self.note("pytest itself (internal error)", telling(str(excrepr).splitlines()))

    def note(self, name: str, lines: list[str]) -> None:
        """Keep the lines that say why `name` failed, the most important ones first."""
        self.failed.setdefault(re.sub(r"@[\w ]+(?= |$)", "", name), lines)  # xdist's group

    # What is shown

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session):
        if self.stopped:  # printed now: whoever stops the run may not wait for the workers
            self._print([f"stopped by {self.stopped}", *self._running()])
        try:
            return (yield)
        finally:
            if self.failed and session.exitstatus == pytest.ExitCode.OK:  # xdist: a hook's error
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            self._print(self.block())
            if self._before is not None:
                signal.signal(signal.SIGTERM, self._before)

    def _print(self, lines: list[str]) -> None:
        if (reporter := self.config.pluginmanager.get_plugin("terminalreporter")) is not None:
            for line in lines:
                reporter.write_line(line)

    def _running(self) -> list[str]:
        return [f"was running: {name}" for name in list(self.running)[:8]]

    def block(self) -> list[str]:
        """The lines of the block; there are none if nothing failed."""
        end = [f"stopped by {self.stopped}", *self._running()] if self.stopped else []
        if self.failed:
            end = [f"failed: {len(self.failed)}", *shared(self.failed, LINES - 2 - len(end)), *end]
        return ["", *end] if end else []


def shared(failed: dict[str, list[str]], lines: int) -> list[str]:
    """The names in `failed`, each with its share of `lines` lines."""
    if len(failed) > NAMED:
        names = [cropped(f"FAILED {name}") for name in failed]
        more = len(names) - (lines - 1)
        return names if more <= 1 else [*names[: lines - 1], f"... and {more} more"]
    each = min(OF_ONE, lines // len(failed)) - 1
    found = []
    for name, text in failed.items():
        found += [cropped(f"FAILED {name}"), *(cropped(f"    {line}") for line in text[:each])]
    return found


def cropped(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ..."


def why(report) -> list[str]:
    """The test's line, its assertion and its ranks' output, the most important lines first."""
    text = report.longrepr
    crash = getattr(text, "reprcrash", None)
    if crash is None:
        return telling(str(text).splitlines())
    sections = [s for name, body in report.sections if "stderr" in name for s in body.splitlines()]
    first, *rest = crash.message.splitlines() or [""]
    return [place(report), first, *telling([*rest, *sections])]


def place(report) -> str:
    """The last line of the test's own file that ran, with its text."""
    file = report.nodeid.split("::")[0].split("@")[0]
    found = f"{report.longrepr.reprcrash.path}:{report.longrepr.reprcrash.lineno}"
    for entry in getattr(report.longrepr.reprtraceback, "reprentries", []):
        at = getattr(entry, "reprfileloc", None)
        if at is not None and str(at.path).endswith(file):
            source = [line[1:].strip() for line in entry.lines if line.startswith(">")]
            found = f"{file}:{at.lineno}: {' '.join(source[:1])}"
    return found


def telling(lines: list[str]) -> list[str]:
    """All `lines` if they are few; else the lines that say what happened, then the end.

    The last of them comes first, so that it stays whatever is cut off later.
    """
    lines = [line.rstrip() for line in lines if line.strip()]
    if len(lines) < OF_ONE // 2:
        return lines
    first = [line for line in reversed(lines) if TELLING.match(line.lstrip("E ").strip())]
    first = list(dict.fromkeys(first))[: OF_ONE // 4]
    return [*first, "...", *lines[-(OF_ONE // 2) :]]
