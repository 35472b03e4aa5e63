"""Ranks of a command: the launcher checks the options once, and hands them on as JSON.

A rank is `python -m tutorial_dl --asked COMMAND JSON`; to read the options from a command line once
more, and check them, would take it a seventh of a second.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from numba_kernels import launch

ASKED = "--asked"
# The module of each command: its `work(**options)` is that of one rank, and returns the exit status
MODULES = {"train": "train", "tune": "tune", "evaluate": "applying", "predict": "applying"}


def start(
    command: str, ranks: int, options: Mapping[str, Any], **more: Any
) -> subprocess.CompletedProcess:
    """Run a command on ranks; `options` are those of its `work`, `more` of launch.run_ranks."""
    return launch.run_ranks(
        ranks, ["-m", "tutorial_dl", ASKED, command, json.dumps(options)], **more
    )


def work(command: str, options: str) -> int:
    """The work of one rank that `start` has started; returns its exit status."""
    try:
        return import_module(f".{MODULES[command]}", __package__).work(**json.loads(options))
    except (ValueError, launch.LaunchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
