"""`compiled`: how every kernel of this package is compiled. cache.py says where it is kept."""

from __future__ import annotations

import numba

from .cache import KernelCache, cache_folder

__all__ = ["FASTMATH", "REASSOCIATE", "cache_folder", "compiled"]

# Flags that keep NaN and infinity meaningful: a loss that became NaN must be seen as NaN.
FASTMATH = {"contract", "nsz", "arcp"}
# For loops that only add up: sums may be taken in any order, which is what vectors need.
REASSOCIATE = {*FASTMATH, "reassoc"}


def compiled(function=None, /, *, cache=True, **options):
    """Decorate `function` as a nopython kernel that runs without the GIL and is cached on disk."""
    if function is None:
        return lambda f: compiled(f, cache=cache, **options)
    options = {"nogil": True, "error_model": "numpy", "fastmath": FASTMATH, **options}
    kernel = numba.njit(**options)(function)
    if cache:
        kernel._cache = KernelCache(function)
    return kernel
