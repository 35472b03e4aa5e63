"""The command line. Nothing heavy is imported before a command has checked its words."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from numba_kernels import launch, optimizers

from . import __version__, strategies

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Distributed deep learning over MPI: train, look inside, learn.",
)

Strategy = StrEnum("Strategy", list(strategies.NAMES))
Optimizer = StrEnum("Optimizer", list(optimizers.NAMES))
Ranks = Annotated[
    int | None,
    typer.Option(
        "-n", "--ranks", help="Ranks to start. Leave it out under mpiexec, srun or aprun."
    ),
]


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"tutorial-dl {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Which one.")
    ] = False,
) -> None:
    pass


def fail(message: str, status: int = 2) -> None:
    """One line on the terminal, and the end."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise typer.Exit(status)


def ending(status: int) -> str:
    """What a status of mpiexec says of the rank that did not end by itself."""
    number = status - 128 if status > 128 else status
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"status {status}"
    return f"signal {name}" + (" (no memory left?)" if name == "SIGKILL" else "")


@app.command()
def run(
    ranks: Annotated[
        int, typer.Option("-n", "--ranks", help="The most ranks to use; 1, 2 and so on up to it.")
    ] = 4,
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("report.html"),
    json: Annotated[str | None, typer.Option(help="Results as JSON; - prints them.")] = None,
) -> None:
    """The main job: train on real digits by each strategy, compare, and write a report."""
    from . import comparison

    try:
        launch.check_ranks(ranks)
        comparison.check_writable(report)
        if json not in (None, "-"):
            comparison.check_writable(Path(json))
        raise typer.Exit(comparison.run(ranks, report, json))
    except (ValueError, launch.LaunchError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted", 130)


@app.command()
def train(
    ranks: Ranks = None,
    model: Annotated[
        str, typer.Option(help="Name (curve, softmax, dense, mlp, cnn) or module:function.")
    ] = "dense",
    data: Annotated[str, typer.Option(help="Name (digits, curve) or module:function.")] = "digits",
    strategy: Annotated[Strategy, typer.Option(help="How ranks train together.")] = (
        Strategy.synchronous
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Times through the data.")] = 5,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Samples an update, all ranks together.")
    ] = 32,
    optimizer: Annotated[Optimizer, typer.Option(help="Update rule.")] = Optimizer.adam,
    learning_rate: Annotated[
        float | None, typer.Option(min=0.0, help="Step size; default: the optimizer's own.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights and sample order.")] = 0,
    one_copy: Annotated[
        bool,
        typer.Option(
            "--one-copy", help="One copy of the weights a node: less memory; synchronous only."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    json: Annotated[str | None, typer.Option(help="Result as JSON; - prints it.")] = None,
) -> None:
    """Train one model on one data set by one strategy."""
    from .training import job

    options = job.Options(
        model, data, strategy.value, epochs, batch_size, optimizer.value, learning_rate, seed,
        quiet, json, one_copy,
    )  # fmt: skip
    try:
        options.check(ranks)
        if launch.under_mpi():
            if ranks is not None:
                raise ValueError(f"-n {ranks}, but mpiexec or srun has started the ranks already")
            raise typer.Exit(job.run_rank(options))
        done = launch.run_ranks(ranks or 1, ["-m", "tutorial_dl", *options.words()])
    except (ValueError, launch.LaunchError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted", 130)
    if done.returncode not in (0, 1, 2):  # those have said why
        fail(f"a rank was ended by {ending(done.returncode)}", 1)
    raise typer.Exit(done.returncode)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Check what this machine needs to run ranks and clusters; say how to mend what is missing."""
    from . import doctor as checks

    raise typer.Exit(checks.main(json))
