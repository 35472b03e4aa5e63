"""`Clock`: the clock that a run measures time with.

All seconds in the history, and all time limits of the loops, are differences of its `now()`. To use
another one, for example a simulated clock, pass any object with `now()` as `Run(..., clock=...)`.
"""

import time


class Clock:
    """Real time."""

    def now(self) -> float:
        """Seconds since a fixed but arbitrary moment."""
        return time.perf_counter()
