"""Errors that IPython shows as one line, because the frames of this package would not help."""

import functools
from collections.abc import Callable

from numba_kernels import launch


def short_tracebacks(function: Callable) -> Callable:
    """Make errors of the function's caller one line in IPython.

    These are ValueError, LaunchError and errors of clusters (ClusterError is a RuntimeError).
    """
    from .registry import ClusterError

    @functools.wraps(function)
    def called(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (ValueError, launch.LaunchError, ClusterError) as error:
            if not hasattr(error, "_render_traceback_"):
                text = f"{type(error).__name__}: {error}"
                error._render_traceback_ = lambda: text.splitlines()
            raise

    return called
