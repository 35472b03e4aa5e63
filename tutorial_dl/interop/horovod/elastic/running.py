"""`elastic.run`: call the training function again, with the ranks that are left.

rank 0   train ... PeerError -> last commit -> ranks 0 and 2 regroup -> train
rank 1   train ... killed                                |
rank 2   train ... PeerError -> last commit -------------'           -> train
"""

import copy
import functools
import os
import sys
from collections.abc import Callable, Iterable

import numpy as np

from numba_kernels.errors import DeadlineError, MismatchError, PeerError, TeamError, ranks_in_words

from .. import basics
from ..pickles import from_root
from ..wire import Max

LEAST = "TUTORIAL_DL_MIN_NP"  # the number of ranks that must be left, set by --min-np
MOST_IN_VAIN = 10  # times to regroup without a lost rank or a commit: it would never end
SECONDS = 600.0  # for ranks that compute to hear that another one failed, as in Horovod

# A collective failed, because another rank did. Scripts raise it, too.
HorovodInternalError = TeamError


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks regroup without going back to the last commit. Nothing here raises it; scripts may.

    Args:
        skip_sync: do not send rank 0's state to the others afterwards.
    """

    def __init__(self, skip_sync: bool = False):
        super().__init__("ranks were asked to regroup")
        self.skip_sync = skip_sync


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
                    basics.fail(error, for_good=True)
                    raise
                cause, with_sync = error, True

    return wrapper


def _goes_on_after(error: BaseException) -> bool:
    """Return whether `error` comes from another rank's failure, or from a rank that goes on."""
    if isinstance(error, TeamError):
        return not isinstance(error, (MismatchError, DeadlineError))
    # TensorFlow and Keras turn errors into ones of their own.
    return isinstance(error, Exception) and any(
        isinstance(team.failure, PeerError) for team in basics.teams()
    )


def _any_committed(state) -> bool:
    """Return whether a rank has committed since this was last asked. Collective."""
    mine, state.committed = np.array([state.committed], np.int64), False
    return bool(basics.global_process_set.wire().allreduce([mine], Max)[0][0])


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


def from_rank_0(obj):
    """Return rank 0's `obj`, which must be one that can be pickled."""
    return from_root(obj, basics.global_process_set.wire(), 0)


class State:
    """The state of a training function that `elastic.run` decorates; its methods are called there.

    Classes derived from it define `save` (keep a copy of the state), `restore` (take the copy that
    was kept last) and `sync` (take rank 0's state, and keep a copy of it), and `reset` if they need
    it.

    Args:
        bcast_object: returns rank 0's object for that of this rank. By default `broadcast_object`.
        get_rank: returns this rank. By default `rank`.
    """

    committed = False  # since the ranks last regrouped

    def __init__(self, bcast_object: Callable | None = None, get_rank: Callable | None = None):
        self._bcast_object = bcast_object or from_rank_0
        self._rank = get_rank or basics.rank
        self._reset_callbacks: list[Callable[[], object]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], object]]) -> None:
        """Call these functions after the ranks have regrouped, to adapt learning rates and data."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep the state as it is now, in memory; a failure takes training back to here."""
        self.save()
        self.committed = True
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HorovodInternalError if another rank has failed, without waiting for any."""
        basics.heed()

    def save(self) -> None:
        """For classes derived from this one, as `restore` and `sync` are."""
        raise NotImplementedError

    restore = sync = save

    def reset(self) -> None:
        """Prepare for other ranks; it is called before the reset callbacks."""


class ObjectState(State):
    """A state of Python objects, which become its attributes.

        state = hvd.elastic.ObjectState(epoch=0, losses=[])
        state.losses.append(2.5)
        state.commit()

    Copies are kept, so objects may be changed in place. They must be ones that can be pickled.

    Args:
        bcast_object, get_rank: see `State`.
        objects: names and values.
    """

    def __init__(self, bcast_object=None, get_rank=None, **objects):
        super().__init__(bcast_object, get_rank)
        self._names = list(objects)
        self._take(objects)
        self._saved_state = copy.deepcopy(objects)

    def save(self) -> None:
        self._saved_state = copy.deepcopy({name: getattr(self, name) for name in self._names})

    def restore(self) -> None:
        self._take(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        if self._names:
            self._take(self._bcast_object({name: getattr(self, name) for name in self._names}))
            ObjectState.save(self)

    def _take(self, objects: dict) -> None:
        for name, value in objects.items():
            setattr(self, name, value)
