"""`compiled`: how every kernel of this package is compiled, and where the machine code is kept.

Numba compiles a function at its first call, which takes a second or so, and can keep the result on
disk. Two traps of that cache are closed here:

- A cached function is not rebuilt when a function *that it calls* has changed. So the folder is
  named after a hash of all of this package's sources: a changed kernel never meets stale callers.
- The default place, beside the sources, is read-only in many installations. So the cache lives in
  the user's cache folder, and if that is not writable either (HPC homes), in the temporary one.

`NUMBA_CACHE_DIR`, where set, is obeyed.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

import numba
from numba.core import config

# Flags that keep NaN and infinity meaningful: a loss that became NaN must be seen as NaN.
FASTMATH = {"contract", "nsz", "arcp"}
# For loops that only add up: sums may be taken in any order, which is what vectors need.
REASSOCIATE = {*FASTMATH, "reassoc"}


@cache
def cache_folder() -> Path:
    """The folder that compiled kernels are kept in; created if need be."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    sources = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        sources.update(file.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    temporary = Path(tempfile.gettempdir()) / f"numba_kernels-{os.getuid()}"
    for place in (home / "numba_kernels", temporary):
        folder = place / sources.hexdigest()[:16]
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        # Machine code is loaded from here: a folder that somebody else owns is not to be trusted.
        if os.access(folder, os.W_OK | os.X_OK) and folder.stat().st_uid == os.getuid():
            return folder
    return Path(tempfile.mkdtemp(prefix="numba_kernels-"))


def compiled(function=None, /, **options):
    """Decorate `function` as a nopython kernel that runs without the GIL and is cached on disk."""
    if function is None:
        return lambda f: compiled(f, **options)
    options = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": FASTMATH,
        "cache": True,
        **options,
    }
    # Numba reads the folder when it decorates; other packages' functions keep their own place.
    before, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder())
    try:
        return numba.njit(**options)(function)
    finally:
        config.CACHE_DIR = before
