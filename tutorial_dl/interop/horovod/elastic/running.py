"""`elastic.run`: call the training function again, with the ranks that are left.

rank 0   train ... PeerError -> last commit -> ranks 0 and 2 regroup -> train
rank 1   train ... killed                                |
rank 2   train ... PeerError -> last commit -------------'           -> train
"""

import functools
import os
import sys
from collections.abc import Callable

import numpy as np

from numba_kernels.errors import DeadlineError, MismatchError, PeerError, TeamError, ranks_in_words

from .. import basics, process_sets
from ..reductions import Max
from .errors import LEAST, HostsUpdatedInterrupt

MOST_IN_VAIN = 10  # times to regroup without a lost rank or a commit: it would never end
SECONDS = 600.0  # for ranks that compute to hear that another one failed, as in Horovod


def run(function: Callable) -> Callable:
    """Decorate `function(state, ...)`, a training function, so that it outlives lost ranks.

    Before it begins, all ranks get rank 0's state. If a rank is lost or raises an error while
    others are in a collective, they return to their last commit and regroup: ranks are numbered
    anew, reset callbacks are called, all get the state of the new rank 0 (the lowest rank that is
    left), and the function begins again. A rank whose own HorovodInternalError is the cause goes on
    with the others; after any other error of its own, it is lost. All ranks return together.

    Raises:
        HorovodInternalError: ranks failed ten times in turn, none was lost, and none committed.
        SystemExit: with one line, if fewer ranks are left than --min-np of the launcher asks for,
            or the environment variable TUTORIAL_DL_MIN_NP; by default, all must be left.
    """

    @functools.wraps(function)
    def wrapper(state, *args, **kwargs):
        all_ranks, in_vain = basics.size(), 0
        cause, with_sync = None, True
        while True:
            try:
                if cause is not None:
                    if not isinstance(cause, HostsUpdatedInterrupt):
                        state.restore()
                    lost = _regroup(cause, all_ranks)
                    in_vain = 0 if lost or _any_committed(state) else in_vain + 1
                    state.on_reset()
                if with_sync:
                    state.sync()
                result = function(state, *args, **kwargs)
                basics.wait_for_all()  # a rank that returned could not begin again
                return result
            except HostsUpdatedInterrupt as error:
                cause, with_sync = error, not error.skip_sync
            except BaseException as error:
                if not _goes_on_after(error) or in_vain == MOST_IN_VAIN:
                    basics.leave(error)
                    raise
                cause, with_sync = error, True

    return wrapper


def _goes_on_after(error: BaseException) -> bool:
    """Return whether `error` comes from another rank's failure, or from a rank that goes on."""
    if isinstance(error, TeamError):
        return not isinstance(error, (MismatchError, DeadlineError))
    # TensorFlow and Keras turn errors into ones of their own.
    return isinstance(error, Exception) and any(
        isinstance(team.failure, PeerError) for team in process_sets.teams()
    )


def _any_committed(state) -> bool:
    """Return whether a rank has committed since this was last asked. Collective."""
    mine, state.committed = np.array([state.committed], np.int64), False
    return bool(process_sets.global_process_set.wire().allreduce([mine], Max)[0][0])


def _regroup(cause: BaseException, all_ranks: int) -> list[int]:
    """Return the ranks that were lost; raise SystemExit if too few are left."""
    basics.fail(cause)
    lost = basics.regroup(SECONDS)
    if not lost:
        return lost
    least, left = int(os.environ.get(LEAST, all_ranks)), basics.size()
    were = f"elastic: {ranks_in_words(lost)} {'was' if len(lost) == 1 else 'were'} lost"
    if left >= least:
        if basics.rank() == 0:
            print(f"{were}; going on with {left} of {all_ranks} ranks", file=sys.stderr, flush=True)
        return lost
    if basics.rank() > 0:
        sys.exit(1)
    sys.exit(
        f"{were}; {left} of {all_ranks} ranks left, but at least {least} must be (--min-np): "
        "start again from a checkpoint"
    )
