"""Command lines in this process, since a start takes a second; and in one of their own."""

from __future__ import annotations

import subprocess
import sys
from unittest import mock

import pytest

from tutorial_dl import __main__


def run_here(capfd, *words: str) -> subprocess.CompletedProcess:
    """What `python -m tutorial_dl WORDS` returns and writes; `capfd` is pytest's fixture."""
    line = mock.patch.object(sys, "argv", ["tutorial_dl", *words])
    with line, pytest.raises(SystemExit) as ended:
        __main__.main()
    written = capfd.readouterr()
    return subprocess.CompletedProcess(words, ended.value.code, written.out, written.err)


def run_command(*words: object, **options) -> subprocess.CompletedProcess:
    """`python -m tutorial_dl WORDS` in a process of its own; `options` are subprocess.run's."""
    usual = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 600}
    line = [sys.executable, "-m", "tutorial_dl", *map(str, words)]
    return subprocess.run(line, **usual | options)
