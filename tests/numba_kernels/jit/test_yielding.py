"""A rank that shares its core with a program that computes sleeps instead of yielding."""

import os
import subprocess
import sys

import numpy as np


def alone_and_not():
    from numba_kernels.jit.yielding import HELD, yielded

    words = np.array([5, 0])
    assert yielded(words, 1) and words[0] == 5
    words[1] = 2  # another program has kept the core
    assert [yielded(words, 1) for _ in range(3)] == [False, False, True]

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # its child has the same core
    busy = subprocess.Popen([sys.executable, "-c", "print('runs', flush=True)\nwhile True: pass"],
                            stdout=subprocess.PIPE)  # fmt: skip
    try:
        busy.stdout.readline()
        words[1] = 0
        for _ in range(10_000):
            assert yielded(words, 1)
            if words[1]:
                break
        assert words[1] == HELD and not yielded(words, 1)
    finally:
        busy.kill()
        busy.wait()
        busy.stdout.close()


def test_yields_that_take_long_are_noted(on_ranks):
    on_ranks(1, alone_and_not, fresh=True)
