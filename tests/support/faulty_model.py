"""A model that fails in the way its argument says; for tests of the search (tuning)."""

import os
import signal
import time
from pathlib import Path

from numba_kernels import launch
from tutorial_dl.replica import DenseReplica


def build(what="fine", width=16, seconds=0.0, pids=None):
    if pids is not None:
        Path(pids, str(launch.rank())).write_text(str(os.getpid()))
    odd = launch.rank() % 2
    if what == "raises":
        raise RuntimeError("no such model")
    if what == "one_raises" and odd:
        raise RuntimeError("only odd ranks")
    if what == "memory":
        raise MemoryError
    if what == "one_hangs" and odd:
        # Its deadline comes now, and not when a busy machine would let others miss it, too.
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        time.sleep(1000)
    if what == "one_is_killed" and odd:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)
    return DenseReplica((64, width, 10), "relu", "cross_entropy", seed=0)


def merit(trainer):
    """A figure of merit of the user's: how far the accuracy is from a half."""
    return abs(trainer.history.last["val_accuracy"] - 0.5)
