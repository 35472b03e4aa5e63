"""Yield the core as long as it comes back soon; otherwise the caller sleeps.

`sched_yield` gives the core to whoever wants it next. If that is another rank, it soon waits in its
turn. But a program that computes keeps the core for its whole time slice, which is a thousand times
as long as a barrier, and Linux then gives it back to a rank that only wants to yield it again. A
sleeping rank costs nothing, and goes before such a program when it is woken. So after a yield that
took long, the next waits sleep at once.
"""

from numba import types

from .compile import compiled
from .mpi_functions import Wtime, sched_yield

LONG = 1e-3  # seconds; a time slice has 1.4 ms or more
HELD = 300  # so many waits sleep before one tries to yield again
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


@compiled
def yielded(words, held):
    """Yield the core and return True; False if it was kept for long lately, as words[held] says."""
    if words[held] > 0:
        words[held] -= 1
        return False
    began = Wtime()
    sched_yield()
    if Wtime() - began > LONG:
        words[held] = HELD
    return True


@compiled
def nap(waited):
    """Sleep for 20 us and 2% of the seconds waited so far, where nobody wakes a sleeping rank."""
    _usleep(min(1000, 20 + int(2e4 * waited)))
