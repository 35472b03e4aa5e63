"""`Pulse`: from time to time, all ranks agree whether one of them has to stop.

A signal reaches one rank at some moment, but all ranks must leave the loop after the same step, or
the others would wait for the rank that left. An allreduce after every step would cost more than a
small step; so they agree about every 0.25 s, with all ranks counting the same steps.
"""

import signal
import threading
import time
from contextlib import contextmanager

import numpy as np

SECONDS = 0.25  # approximate time between two beats
MOST = 1000  # most steps between two beats


class Pulse:
    def __init__(self, team):
        self.team = team
        self._steps = self._left = 1
        self._since = time.monotonic()

    def beat(self, wants: bool) -> bool:
        """Call after each step; at a beat, returns whether any rank wants to stop. Collective."""
        self._left -= 1
        if self._left:
            return False
        took = (time.monotonic() - self._since) / self._steps
        wants, took = self.team.allreduce(np.array([wants, took], np.float64), "max")
        self._steps = self._left = max(1, min(int(SECONDS / max(took, 1e-9)), MOST))
        self._since = time.monotonic()
        return bool(wants)


# What batch systems send some time before they kill a job; the second and third if asked to
WARNINGS = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2


@contextmanager
def heeding(*numbers: int):
    """Context in which these signals are only recorded: yields a list to which they are appended.

    Only a process's main thread can handle signals; in other threads this changes nothing.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = {one: signal.signal(one, lambda number, frame: seen.append(number)) for one in numbers}
    try:
        yield seen
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
    if seen:  # the loop has not acted on it, so raise it again with its usual effect
        signal.raise_signal(seen[0])
