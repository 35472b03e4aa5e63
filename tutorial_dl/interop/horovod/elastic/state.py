"""What elastic training must not lose: State, and ObjectState for any Python objects."""

import copy
from collections.abc import Callable, Iterable

from .. import basics
from ..pickles import from_root
from ..process_sets import global_process_set


def from_rank_0(obj):
    """Return rank 0's `obj`, which must be one that can be pickled."""
    return from_root(obj, global_process_set.wire(), 0)


class State:
    """The state of a training function that `elastic.run` decorates; its methods are called there.

    Classes derived from it define `save`, `restore` and `sync`, and `reset` if they need it.

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
        """Keep a copy of the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Take the copy that was kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take rank 0's state, and keep a copy of it. Collective."""
        raise NotImplementedError

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
