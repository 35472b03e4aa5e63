"""What a replica must know of Keras layers that need all ranks (tutorial_dl/interop/layers).

Such a layer calls collectives while a gradient is computed. So a rank without samples must compute
all the same, on a batch without weight, and an error of a collective must get out of TensorFlow.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_here = threading.local()
_raised: list[BaseException] = []  # by a collective, on a thread of TensorFlow


class CollectiveLayer:
    """Base class of Keras layers that every rank of a team has to call equally often.

    `team` is the user's choice; a layer without one uses the team of the last `use_team`.
    """

    team = training_team = None


@contextmanager
def without_samples() -> Iterator[None]:
    """What is computed (or traced) meanwhile is not part of the batch: this rank has no samples."""
    _here.empty = True
    try:
        yield
    finally:
        _here.empty = False


def has_samples() -> bool:
    return not getattr(_here, "empty", False)


def remember(error: BaseException) -> None:
    """A collective inside TensorFlow raised `error`: keep it for `cause`."""
    _raised[:] = [error]


def cause(error: BaseException) -> BaseException:
    """What a collective raised in a graph, if `error` is TensorFlow's; else `error` itself."""
    found, _raised[:] = list(_raised), []
    return found[0] if found and type(error).__module__.startswith("tensorflow.") else error
