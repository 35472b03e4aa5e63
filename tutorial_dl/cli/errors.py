"""How a command fails: with one line on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from numba_kernels.launch.mpiexec import LaunchError

from ..words import cut

# What options of other tools are called here
ELSEWHERE = {
    "--lr": "--learning-rate", "--early-stopping": "--patience", "--bs": "--batch-size",
    "--num-epochs": "--epochs", "--gradient-accumulation": "--accumulate", "--np": "-n",
}  # fmt: skip


def fail(message: str, status: int = 2) -> None:
    """Print `error: MESSAGE` on standard error and exit with `status`."""
    print(f"error: {cut(message)}", file=sys.stderr, flush=True)
    raise typer.Exit(status)


def in_one_line(error: Exception) -> str:
    """What typer has to say about a command line."""
    text = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
    instead = ELSEWHERE.get(getattr(error, "option_name", ""))
    own = [name for one in error.ctx.command.params for name in one.opts] if instead else ()
    if instead in own:
        text = f"{text.partition(' (')[0]}; it is {instead} here"
    return cut(f"{text}; see --help") if text else ""


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
