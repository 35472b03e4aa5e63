"""Notes of measured times. Only tests/soak asserts bounds for them.

    with clock.seconds("all ranks know of a failure"):      # in a test, or in a rank of it
        ...
    clock.note("wake-up", 0.002)                            # any other number

Without the variable `FILE` in the environment nothing is written. In a soak test the fixture
`bound` reads what was noted, asserts a bound, and adds a line to the table that is printed last.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path

FILE = "TUTORIAL_DL_TEST_CLOCK"


def note(what: str, value: float) -> None:
    """Write one line in one call, so that lines of several ranks do not mix."""
    if path := os.environ.get(FILE):
        with open(path, "ab", buffering=0) as file:
            file.write(json.dumps([what, float(value)]).encode() + b"\n")


@contextmanager
def seconds(what: str):
    """Note how long the block took, also if it raises."""
    began = time.perf_counter()
    try:
        yield
    finally:
        note(what, time.perf_counter() - began)


def noted(path: Path, what: str) -> list[float]:
    """All numbers noted as `what`, in the order in which they were written."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [value for name, value in lines if name == what]
