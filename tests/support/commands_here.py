"""Command lines in this process, since a start takes a second: for tests of nothing but words."""

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
