"""support/limited_memory.py: what needs more than the limit ends, in a cgroup and without one."""

from __future__ import annotations

import os
import sys
from subprocess import PIPE

import limited_memory
import pytest
from limited_memory import Limited

LIMIT = 80 * 10**6
# Takes so many bytes in a child of its own, says so, and keeps them until its input ends.
TAKES = """
import os, sys
if os.fork() == 0:
    taken = bytearray(int(sys.argv[1]))
    taken[::4096] = b"x" * len(taken[::4096])
    print("taken", flush=True)
    sys.stdin.read()
os.wait()
"""


def taken(size: int) -> tuple[bool, int]:
    """Take `size` bytes; returns whether the limit was exceeded, and the largest sum of memory."""
    words = [sys.executable, "-I", "-S", "-c", TAKES, str(size)]
    with Limited(LIMIT) as limited:
        with limited.start(words, dict(os.environ), stdin=PIPE, stdout=PIPE) as process:
            said = process.stdout.readline()
            if size > LIMIT:
                process.wait(600)
            else:
                assert said == b"taken\n"
                while limited.peak < size:
                    limited.peak = max(limited.peak, limited.sum())
        return limited.out_of_memory(), limited.peak


@pytest.mark.parametrize("cgroup", [True, False], ids=["a cgroup if we may", "none"])
def test_memory_is_limited_and_measured(monkeypatch, cgroup):
    if not cgroup:
        monkeypatch.setattr(limited_memory, "make_group", lambda _: None)
    exceeded, peak = taken(40 * 10**6)
    assert not exceeded and peak < 60 * 10**6
    exceeded, _ = taken(200 * 10**6)
    assert exceeded
