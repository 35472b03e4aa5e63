"""`Clock`: the clock that a run measures time with.

All seconds in the history are differences of its `now()`. To use another one, for example a
simulated clock, pass any object with `now()` as `Run(..., clock=...)`. Ranks are real processes, so
time limits for them and the search for failed ones go by real time, whatever the run's clock says.
"""

import time


class Clock:
    """Real time."""

    def now(self) -> float:
        """Seconds since a fixed but arbitrary moment."""
        return time.perf_counter()
