"""`Clock`: the time that a run measures by."""

from __future__ import annotations

import time


class Clock:
    """Real time. A run takes another clock, for example a simulated one, by its `clock` argument.

    All seconds in the history, and all limits of a master, are differences of `now()`.
    """

    def now(self) -> float:
        """Seconds since a fixed but arbitrary moment."""
        return time.perf_counter()
