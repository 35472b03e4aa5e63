"""What a check says of an exception: its name, its message and the learner's own line.

The frames below the learner's function (numpy, this package) and above it (the check) say nothing
to the learner, so they are left out.
"""

import linecache
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .answers import NotYet

RIGHT, WAITED, WRONG, FAILED = range(4)  # the higher, the nearer to the cause


class Verdict(NamedTuple):
    """What a check found: `weight` is one of the four above, `text` is without "not yet: "."""

    weight: int
    text: str

    @property
    def passed(self) -> bool:
        return self.weight == RIGHT

    def __str__(self) -> str:
        """The one line that a learner reads."""
        return f"{'correct' if self.passed else 'not yet'}: {self.text}"


def verdict_on(judged: Callable[[], str]) -> Verdict:
    """Call `judged`, which returns praise or raises; no error in an answer escapes."""
    try:
        weight, text = RIGHT, judged()
    except NotYet as hint:
        # As text: the error would keep its frames, and with them a team that others wait for.
        weight, text = WRONG, str(hint)
    except NotImplementedError:
        weight, text = FAILED, "the function is still to be written"
    except Exception as error:
        weight, text = (WAITED if is_wait(error) else FAILED), told(error)
    return Verdict(weight, " ".join(text.split()))


def is_wait(error: BaseException) -> bool:
    """Whether this rank only waited in vain, for a rank that failed or never came."""
    if isinstance(error, TimeoutError):
        return True
    from numba_kernels.errors import PeerError  # no MPI in it, but notebooks 1 to 3 need none of it

    return isinstance(error, PeerError)


def told(error: BaseException) -> str:
    """ "NameError: name 'wieght' is not defined (line 3: `return wieght`)"."""
    whole = traceback.TracebackException.from_exception(error, lookup_lines=False)
    message = "".join(whole.format_exception_only()).strip()  # "Did you mean ...?" is in it
    name, separator, rest = message.partition(":")
    name = name.rpartition(".")[2]  # without its module
    message = rest.strip() if is_wait(error) and separator else f"{name}{separator}{rest}"
    line = own_line(error)
    return f"{message} ({line})" if line and not is_wait(error) else message


def own_line(error: BaseException) -> str:
    """ "line 3: `return wieght`", the innermost line of the learner's; "" if there is none."""
    theirs = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if _is_theirs(frame.f_code.co_filename)
    ]
    if not theirs:
        return ""
    source = linecache.getline(*theirs[-1]).strip()
    return f"line {theirs[-1][1]}: `{source}`" if source else f"line {theirs[-1][1]}"


def _is_theirs(filename: str) -> bool:
    """Whether code of this file is the learner's: of a cell, or of a module of their own."""
    compiled = filename.endswith((".pyx", ".pxi"))  # Cython's names are relative
    return not (compiled or filename.startswith(("<", *_folders())))


def _folders() -> tuple[str, ...]:
    """The folders of this project's packages, of installed ones and of Python's own."""
    ours = Path(__file__).parents[3]
    installed = (
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    folders = (ours / "tutorial_dl", ours / "numba_kernels", *installed)
    return tuple(f"{folder}{os.sep}" for folder in folders)
