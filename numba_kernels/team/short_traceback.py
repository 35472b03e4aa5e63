"""What a script shows of an error that these packages raise: the user's lines and the message.

A rank whose call of a team has failed would show up to 160 lines, of Keras's and TensorFlow's files
and of ours, and so would each of its peers. With NUMBA_KERNELS_TRACEBACK=1 they are all shown.
"""

import os
import sysconfig
import traceback
from types import FrameType

from ..errors import TeamError, message_of

OURS = "numba_kernels", "tutorial_dl"
# The last error in a graph, of which TensorFlow makes one of its own; without its frames.
met: list[TeamError] = []
LIBRARIES = *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<frozen"


def asked() -> bool:
    """Return whether all lines are to be shown."""
    return os.environ.get("NUMBA_KERNELS_TRACEBACK") == "1"


def in_short(error: BaseException) -> str | None:
    """Return the short text of an error; None if Python should show it as any other."""
    if asked():
        return None
    text, steps = message_of(error), list(traceback.walk_tb(error.__traceback__))
    if not steps:
        return None
    cause, (raising, _) = error, steps[-1]
    if _is_of_a_library(raising):
        cause = next((one for one in met if str(one) and str(one) in text), error)
    told = isinstance(error, ValueError | TypeError | RuntimeError) and _is_ours(raising)
    if not told and not isinstance(cause, TeamError):
        return None
    found = traceback.TracebackException(type(cause), cause, error.__traceback__)
    found.stack = traceback.StackSummary.extract(
        each for each in steps if not _is_ours(each[0]) and not _is_of_a_library(each[0])
    )
    found.__cause__ = found.__context__ = None
    return "".join(found.format())


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__package__")).partition(".")[0] in OURS


def _is_of_a_library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(LIBRARIES)
