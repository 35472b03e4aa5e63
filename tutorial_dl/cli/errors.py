"""How a command fails: with one line on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from numba_kernels.launch.mpiexec import LaunchError


def fail(message: str, status: int = 2) -> None:
    """Print `error: MESSAGE` on standard error and exit with `status`."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise typer.Exit(status)


@contextmanager
def one_line() -> Iterator[None]:
    """Report an error as one line (a log may follow) and exit with status 2, or 130 for Ctrl-C."""
    from subprocess import TimeoutExpired

    from ..cluster.registry import ClusterError

    try:
        yield
    except (ValueError, LaunchError, ClusterError, OSError, TimeoutExpired) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted", 130)
