"""Command lines on ranks that are there already, for what all ranks refuse: a start takes 2 s.

status, said = told(on_ranks, 2, folder, ["--model", "curve"])
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tutorial_dl import __main__

ERRORS = "errors"  # a file in the folder


def told(on_ranks, ranks: int, folder: Path, words: list) -> tuple[int, str]:
    """The status with which `train WORDS` ends on all ranks, and what they write to stderr."""
    (folder / ERRORS).unlink(missing_ok=True)
    printed = on_ranks(ranks, on_these_ranks, str(folder), [str(word) for word in words])
    *_, last = printed.splitlines(keepends=True)
    status = int(last.removeprefix("status "))
    # What failed prints no result.
    assert printed == ranks * last if status else printed.endswith(ranks * last), printed
    return status, (folder / ERRORS).read_text()


def on_these_ranks(folder, words):
    """Run a command line; what any rank writes to standard error goes to a file in the folder."""
    file = os.open(Path(folder, ERRORS), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    kept = os.dup(2)
    os.dup2(file, 2)
    streams = {"stdout": sys.stdout, "stderr": sys.__stderr__}
    line = {"argv": ["tutorial_dl", "train", *words], "path": [*sys.path]}
    try:
        with contextlib.chdir(folder), np.errstate(), mock.patch.multiple(sys, **streams, **line):
            with pytest.raises(SystemExit) as ended:
                __main__.main()
            sys.__stderr__.flush()
    finally:
        os.dup2(kept, 2)
        os.close(kept), os.close(file)
        for name, module in [*sys.modules.items()]:
            if Path(getattr(module, "__file__", None) or "/").parent == Path(folder):
                del sys.modules[name]
    print(f"status {ended.value.code}")


def run_lines(folder, lines):
    """Run command lines one after the other in these ranks; each must succeed."""
    with contextlib.chdir(folder):
        for words in lines:
            with mock.patch.object(sys, "argv", ["tutorial_dl", *words]):
                with pytest.raises(SystemExit) as ended:
                    __main__.main()
                assert not ended.value.code, words


def json_values(printed):
    """The JSON values in what commands have printed."""
    found, decoder = [], json.JSONDecoder()
    while printed := printed.lstrip():
        value, end = decoder.raw_decode(printed)
        found.append(value)
        printed = printed[end:]
    return found
