"""`ahead`: work done on a thread, a little earlier than its results are asked for.

While the ranks compute on what was read last, the next is being read. HDF5 reads without holding
Python's lock, so the two run at the same time. Never more than two results exist: the one in use
and the next one. What comes after that is begun when the one in use is given back.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

SECONDS = 600  # that a result may take before it is given up (a file server that hangs)
_LOOK = 0.2  # seconds between two looks at whether the other side is still there


class Stopped(Exception):
    """Nobody wants the results any more."""


class Waited(RuntimeError):
    """A result took longer than allowed."""


def ahead(
    items: Iterable,
    worker: Callable[[Callable[[], None]], AbstractContextManager[Callable[[Any], Any]]],
    seconds: float = SECONDS,
) -> Iterator[Any]:
    """Yield `work(item)` for each of `items`, computed on a thread.

    Args:
        items: Drawn on the thread, too.
        worker: `with worker(check) as work:` is entered on the thread; `work` calls `check()` now
            and then, which raises `Stopped` once the results are no longer wanted.
        seconds: That one result may take.

    Raises:
        Waited: A result took longer than `seconds`.
        What `items`, `worker` or `work` raised, when its turn has come.
    """
    wanted = threading.Semaphore(2)  # results that may exist
    results: queue.SimpleQueue = queue.SimpleQueue()
    over = threading.Event()

    def check() -> None:
        if over.is_set():
            raise Stopped

    def run() -> None:
        try:
            with worker(check) as work:
                for item in items:
                    while not wanted.acquire(timeout=_LOOK):
                        check()
                    check()
                    results.put((True, work(item)))
            results.put((False, None))
        except Stopped:
            pass
        except BaseException as error:
            results.put((False, error))

    thread = threading.Thread(target=run, name="reading ahead", daemon=True)
    thread.start()
    try:
        while True:
            there, result = _next(results, thread, seconds)
            if not there:
                if result is not None:
                    raise result
                return
            yield result
            del result  # or it would live until the next one is there
            wanted.release()
    finally:
        over.set()
        thread.join(timeout=10)  # it looks at `over` often, unless a read hangs in the system


def _next(results: queue.SimpleQueue, thread: threading.Thread, seconds: float) -> tuple[bool, Any]:
    """The next result, waited for in pieces: Ctrl-C works, and a thread that is gone is noticed."""
    end = time.monotonic() + seconds
    while True:
        running = thread.is_alive()
        try:
            return results.get(timeout=_LOOK)
        except queue.Empty:
            if not running:
                raise RuntimeError("the thread that reads ahead has ended by itself") from None
            if time.monotonic() > end:
                raise Waited(f"nothing came for {seconds:g} s") from None
