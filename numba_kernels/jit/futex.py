"""Sleep in compiled code until another process wakes this one: Linux's futex, on shared memory.

With more ranks than cores, a rank that only yields its core may get it back before the rank that
it waits for has run, and a barrier takes milliseconds. A sleeping rank frees its core at once.
See futex(2); the kernel compares and sleeps in one step, so no wake-up is missed.
"""

import platform

import numpy as np
from numba import types

from .compile import compiled

_SYSCALL = {"x86_64": 202, "aarch64": 98, "ppc64le": 221}.get(platform.machine(), 202)
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1

#                                      number address what value timeout unused unused
_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


@compiled
def wait(address, seen, microseconds):
    """Sleep while the int64 at `address` is `seen`, for at most so long; may return early."""
    until = np.empty(2, np.int64)  # a timespec: seconds, nanoseconds
    until[0], until[1] = microseconds // 1_000_000, microseconds % 1_000_000 * 1000
    _syscall(_SYSCALL, address, _WAIT, seen & 0xFFFFFFFF, until.ctypes.data, 0, 0)


@compiled
def wake(address):
    _syscall(_SYSCALL, address, _WAKE, _ALL, 0, 0, 0)
