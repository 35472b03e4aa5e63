"""Ranks that need the same kernel take turns: the first one compiles it, the others then load it.

Ranks that start from an empty cache need the same kernels at the same time. If each compiled them,
all cores of a node would do the same work, and four ranks on two cores would wait twice as long.

A lock on a file beside the kernel's file shows that a process is compiling it. The operating system
releases the lock when that process ends, for whatever reason. Correctness does not depend on the
lock: a process that can't lock there (as on some network file systems), or has waited for PATIENCE,
compiles the kernel itself and writes the same file. A process that has once waited in vain does not
wait again: its peer is stopped, or no file can be kept.
"""

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PATIENCE = 30.0  # seconds; the largest kernel takes some ten
LONGEST = 0.1  # seconds between two checks, at most
in_vain = False  # this process has waited but had to compile all the same


class Turn(NamedTuple):
    """The right of this process to compile a kernel."""

    lock: Path
    descriptor: int


def take(file: Path) -> Turn | None:
    """Wait until no other process compiles `file`; return the turn, to be given back with `give`.

    None: the file has appeared meanwhile, or waiting is of no use. OSError: no file can be created.
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
                if error.errno not in (errno.EAGAIN, errno.EACCES):  # locks do not work here
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
    """Give the turn back: the kernel has been stored, or will not be."""
    # A process that arrives between the two steps locks a new file, and finds the kernel if it was
    # stored.
    try:
        with suppress(OSError):  # the folder is gone or has become read-only
            turn.lock.unlink()
        with suppress(OSError):  # unlock: a forked child may keep the file open
            fcntl.flock(turn.descriptor, fcntl.LOCK_UN)
    finally:
        os.close(turn.descriptor)
