"""Ranks that need the same kernel take turns: the first one compiles it, the others load it then.

Ranks that start from an empty cache ask for the same kernels at the same time. If each compiled
them, all cores of a node would be busy with the same work, and four ranks on two cores would wait
twice as long for it.

A lock on a file beside the kernel's says that somebody is at it. The system gives it back when a
process ends, however it does. And nobody relies on it: who can't lock there (as on some network
file systems), or has waited for PATIENCE, compiles for himself, and what he writes is the same. A
process that has waited in vain does so no more: its peer is stopped, or nothing can be kept.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PATIENCE = 30.0  # seconds; the largest kernel takes some ten
LONGEST = 0.1  # seconds between two looks
in_vain = False  # this process has waited, and had to compile all the same


class Turn(NamedTuple):
    """It is this process that compiles a kernel."""

    lock: Path
    descriptor: int


def take(file: Path) -> Turn | None:
    """Wait until nobody else compiles `file`; the turn, to be given back.

    None: it is there meanwhile, or there is no use in waiting. Raises OSError where no file can be
    made.
    """
    global in_vain
    if in_vain:
        return None
    lock = file.with_name(f"{file.name}.turn")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    began, pause, waited = time.monotonic(), 0.005, False
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                in_vain = waited and not file.exists()
                turn, descriptor = Turn(lock, descriptor), -1
                return turn
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):  # no locks here
                    lock.unlink(missing_ok=True)
                    return None
            if file.exists():
                return None
            if time.monotonic() - began > PATIENCE:
                in_vain = True
                return None
            waited = True
            time.sleep(pause)
            pause = min(LONGEST, 1.2 * pause)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def give(turn: Turn) -> None:
    """The kernel is kept, or won't be."""
    # Who comes in between locks a file of his own; he finds the kernel, if it was kept.
    try:
        with suppress(OSError):  # the folder is gone, or has become read-only
            turn.lock.unlink()
        with suppress(OSError):  # a child that was forked meanwhile has the file open, too
            fcntl.flock(turn.descriptor, fcntl.LOCK_UN)
    finally:
        os.close(turn.descriptor)
