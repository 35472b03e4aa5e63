"""Pulse: now and then, all ranks tell each other whether one of them has to stop.

A signal comes to one rank at a moment of its own, but ranks must leave the loop after the same
step, or the others would wait for the one that left. Asking after every step would cost more than a
small step does; so it is asked about every quarter of a second, all ranks counting the same steps.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager

import numpy as np

SECONDS = 0.25  # between two beats, about
MOST = 1000  # steps between two beats, however short they are


class Pulse:
    """Counts the steps of all ranks of `team`, and lets them agree every now and then."""

    def __init__(self, team):
        self.team = team
        self._steps = self._left = 1
        self._since = time.perf_counter()

    def beat(self, wants: bool) -> bool:
        """After each step: does any rank want to stop? Tells at a beat only. Collective."""
        self._left -= 1
        if self._left:
            return False
        took = (time.perf_counter() - self._since) / self._steps
        wants, took = self.team.allreduce(np.array([wants, took], np.float64), "max")
        self._steps = self._left = max(1, min(int(SECONDS / max(took, 1e-9)), MOST))
        self._since = time.perf_counter()
        return bool(wants)


@contextmanager
def heeding(number: int = signal.SIGTERM):
    """Within it the signal is only noted: yields a list that then is no longer empty.

    Batch systems send SIGTERM some time before they kill. Only a process's main thread can heed
    signals; elsewhere they do what they did before.
    """
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    before = signal.signal(number, lambda number, frame: seen.append(number))
    try:
        yield seen
    finally:
        signal.signal(number, signal.SIG_DFL if before is None else before)
    if seen:  # it came too late for us: now it does what it would have done
        signal.raise_signal(number)
