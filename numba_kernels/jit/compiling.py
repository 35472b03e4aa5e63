"""The seconds that this thread has spent on compiling kernels, and whom to tell when it begins.

They include loading, and waiting for a thread or a rank that compiles the same kernel. The first
rounds of a program that begins with an empty cache would look slow without it, or like a fault.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Spent(threading.local):
    """Each thread's own: another one may compile while this one works."""

    seconds = 0.0
    since: float | None = None  # when it began


spent = Spent()
tell: Callable[[], None] | None = None  # called once, when a kernel is not in the cache
told = False
after = 0.0  # seconds of compiling, before which it is not called


@contextmanager
def counted() -> Iterator[None]:
    """Count the time spent within; a kernel's compilation may ask for others."""
    if spent.since is not None:
        yield
        return
    spent.since = began = time.perf_counter()
    try:
        yield
    finally:
        spent.since = None
        spent.seconds += time.perf_counter() - began


def begins() -> None:
    """Tell that a kernel must be compiled, here or by another rank."""
    global told
    now = time.perf_counter()
    if tell is not None and not told and spent.seconds + now - (spent.since or now) >= after:
        told = True
        tell()
