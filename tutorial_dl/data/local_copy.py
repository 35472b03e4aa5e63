"""`copies`: files on a local disk of this node, each copied there once by the first rank to ask.

A file server is slow when all nodes read all samples from it in every epoch; the node's own disk is
not. Ranks exchange no messages for this: the rank that holds a file's lock copies it under a
temporary name and then renames it, so that a copy is either complete or absent, however the
copying ends. Meanwhile the other ranks copy files that are still missing. Copies stay for the next
run and are valid as long as their size and modification time equal those of the source.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from tutorial_dl.data.files import DataError

SECONDS = 300  # longest wait for another rank whose copy does not grow
_LOOK = 0.05  # seconds between two looks at a lock that another rank holds
_PIECE = 4 << 20  # bytes


def copies(files: Iterable[Path], folder: Path, seconds: float = SECONDS) -> list[Path]:
    """Return the paths of the copies in `folder`; makes those that are missing or out of date.

    The folder is on a local disk, and made if it isn't there. Any number of processes may use it at
    once; `seconds` is the longest wait for one that makes no progress with its copy. DataError says
    in one line that the folder can't be written, the disk is full, or a file is gone.
    """
    files = list(files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cache {folder}: it can't be created: {error.strerror}") from None
    places = [folder / _name(path) for path in files]
    left = dict(zip(files, places, strict=True))
    seen, end = -1, time.monotonic() + seconds
    while left:
        for path, place in list(left.items()):
            if _made(path, place, folder):
                del left[path]
                end = time.monotonic() + seconds
        grown = sum(_size(_part(place)) for place in left.values())
        if grown != seen:
            seen, end = grown, time.monotonic() + seconds
        if left and time.monotonic() > end:
            raise DataError(
                f"cache {folder}: another process holds the lock of {next(iter(left))} and has "
                f"copied nothing for {seconds:g} s"
            )
        if left:
            time.sleep(_LOOK)
    return places


def _name(path: Path) -> str:
    """A name for the copy that differs for files of the same name in different folders."""
    whole = str(path.resolve())
    return f"{hashlib.sha256(whole.encode()).hexdigest()[:12]}-{path.name}"


def _part(place: Path) -> Path:
    return place.with_name(place.name + ".part")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _made(path: Path, place: Path, folder: Path) -> bool:
    """Make `place` a copy of `path` if it isn't; False while another process is making it."""
    try:
        source = path.stat()
        if _same(source, place):
            return True
        with open(place.with_name(place.name + ".lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if not _same(source, place):  # no other process has made it meanwhile
                _copy(path, source, place, folder)
        return True
    except OSError as error:
        raise _told(error, path, folder) from None


def _same(source: os.stat_result, place: Path) -> bool:
    try:
        have = place.stat()
    except FileNotFoundError:
        return False
    return (have.st_size, have.st_mtime_ns) == (source.st_size, source.st_mtime_ns)


def _copy(path: Path, source: os.stat_result, place: Path, folder: Path) -> None:
    """Copy while holding the lock; an existing .part file was left by a process that died."""
    part = _part(place)
    part.unlink(missing_ok=True)
    if shutil.disk_usage(folder).free < source.st_size:
        raise OSError(errno.ENOSPC, "No space left on device")
    try:
        with open(path, "rb") as original, open(part, "wb") as copy:
            shutil.copyfileobj(original, copy, _PIECE)
            copy.flush()
            os.fsync(copy.fileno())  # the contents must reach the disk before the final name does
        os.utime(part, ns=(source.st_atime_ns, source.st_mtime_ns))
        if not _same(path.stat(), part):
            raise DataError(f"{path}: it changed while it was copied to cache {folder}")
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)


def _told(error: OSError, path: Path, folder: Path) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need, free = _size(path) / 2**20, shutil.disk_usage(folder).free / 2**20
        return DataError(
            f"cache {folder}: no space for {path}: it needs {need:.1f} MiB, {free:.1f} are free"
        )
    if error.filename is not None and Path(error.filename) == path:
        return DataError(f"{path}: it can't be copied to cache {folder}: {error.strerror}")
    return DataError(f"cache {folder}: {path} can't be copied there: {error.strerror}")
