"""`ahead`: prefetch on a thread, so that the next result is ready when it is asked for.

While the ranks compute on one window, the next one is read. HDF5 releases Python's lock (the GIL)
while it reads, so the two overlap. At most two results exist at a time: the one in use and the next
one. The one after that is begun when the one in use is released.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

SECONDS = 600  # longest wait for one result (a file server may hang)
_LOOK = 0.2  # seconds between two checks that the other thread still runs


class Stopped(Exception):
    """The results are no longer wanted."""


class Waited(RuntimeError):
    """A result took longer than allowed."""


def ahead(
    items: Iterable,
    worker: Callable[[Callable[[], None]], AbstractContextManager[Callable[[Any], Any]]],
    seconds: float = SECONDS,
) -> Iterator[Any]:
    """Yield `work(item)` for each of `items`, computed ahead of time on a thread.

    `items` are iterated on the thread, too. There, `with worker(check) as work:` is entered; `work`
    calls `check()` now and then, which raises `Stopped` once the results are no longer wanted.
    Exceptions of all three are raised here when their turn comes; Waited, if a result takes longer
    than `seconds`.
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
            del result  # or it would stay in memory until the next result arrives
            wanted.release()
    finally:
        over.set()
        thread.join(timeout=10)  # it checks `over` often, unless a system read hangs


def _next(results: queue.SimpleQueue, thread: threading.Thread, seconds: float) -> tuple[bool, Any]:
    """Wait for the next result in short steps: Ctrl-C works, and a dead thread is noticed."""
    end = time.monotonic() + seconds
    while True:
        running = thread.is_alive()
        try:
            return results.get(timeout=_LOOK)
        except queue.Empty:
            if not running:
                raise RuntimeError("the thread that reads ahead has ended unexpectedly") from None
            if time.monotonic() > end:
                raise Waited(f"nothing came for {seconds:g} s") from None
