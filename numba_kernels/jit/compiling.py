"""The seconds that this process has spent on compiling kernels, and whom to tell when it begins.

`seconds` includes loading, and waiting for a rank that compiles the same kernel. The first rounds
of a program that begins with an empty cache would look slow without it, or like a fault.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

seconds = 0.0
tell: Callable[[], None] | None = None  # called once, when a kernel is not in the cache
told = False
after = 0.0  # seconds of compiling, before which it is not called
_since: float | None = None  # when it began


@contextmanager
def counted() -> Iterator[None]:
    """Count the time spent within; a kernel's compilation may ask for others."""
    global _since, seconds
    if _since is not None:
        yield
        return
    _since = began = time.perf_counter()
    try:
        yield
    finally:
        _since = None
        seconds += time.perf_counter() - began


def begins() -> None:
    """Tell that a kernel must be compiled, here or by another rank."""
    global told
    now = time.perf_counter()
    if tell is not None and not told and seconds + now - (_since or now) >= after:
        told = True
        tell()
