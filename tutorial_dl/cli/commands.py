"""The command line. Nothing heavy is imported before a command has checked its words."""

from __future__ import annotations

import signal
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from numba_kernels import compression as compressions
from numba_kernels import launch, optimizers

from .. import __version__, strategies
from ..training import rates
from . import cluster

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Distributed deep learning over MPI: train, look inside, learn.",
)

app.add_typer(cluster.app, name="cluster")
Strategy = StrEnum("Strategy", list(strategies.NAMES))
Optimizer = StrEnum("Optimizer", list(optimizers.NAMES))
Compression = StrEnum("Compression", list(compressions.NAMES))
Schedule = StrEnum("Schedule", list(rates.SCHEDULES))
BatchRule = StrEnum("BatchRule", list(rates.RULES))
SAVING_SECONDS = 60.0  # for ranks to write a checkpoint after SIGTERM
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
    from . import run as comparison

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
        str, typer.Option(help="Name (curve, softmax, dense, mlp, cnn, lstm) or module:function.")
    ] = "dense",
    data: Annotated[
        str,
        typer.Option(
            help="Name (digits, curve, events), module:function, or HDF5 files: paths joined by "
            "commas, a pattern in quotes, or a .txt of paths."
        ),
    ] = "digits",
    strategy: Annotated[Strategy, typer.Option(help="How ranks train together.")] = (
        Strategy.synchronous
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Times through the data.")] = 5,
    batch_size: Annotated[
        int,
        typer.Option(
            min=1, help="Samples an update, all ranks together; each worker's, if asynchronous."
        ),
    ] = 32,
    optimizer: Annotated[
        Optimizer | None,
        typer.Option(help="Update rule; default: adam, or what the strategy needs."),
    ] = None,
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
    timeline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What every rank does when: .json for Perfetto, or a figure (.png, .svg, .pdf).",
        ),
    ] = None,
    schedule: Annotated[
        Schedule, typer.Option(help="How the learning rate falls over the epochs.")
    ] = Schedule.constant,
    warm_up: Annotated[
        float, typer.Option(min=0.0, metavar="EPOCHS", help="Raise the learning rate over these.")
    ] = 0.0,
    batch_rule: Annotated[
        BatchRule | None,
        typer.Option(help="Scale the learning rate with batch size / base batch size."),
    ] = None,
    base_batch_size: Annotated[
        int, typer.Option(min=1, help="The one that the learning rate was found for.")
    ] = 32,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Pieces of a batch, one after the other: saves memory.")
    ] = 1,
    clip_norm: Annotated[
        float | None, typer.Option(help="Shorten longer gradients to this length.")
    ] = None,
    compression: Annotated[
        Compression | None, typer.Option(help="Reduce gradients by this method.")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(min=1, metavar="EPOCHS", help="Stop when validation loss did not fall."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar="METRIC=X", help="Stop when, say, val_accuracy=0.97.")
    ] = None,
    report_every: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="A line of loss and speed.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write checkpoints there, each epoch.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="And after each of so many steps.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, if there is one.")
    ] = False,
    features: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME]", help="Of the inputs in HDF5 files; default: features."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(metavar="NAME[,NAME]", help="Of the targets in them; default: labels."),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            metavar="FILES|SHARE",
            help="HDF5 files to validate on, or the share of --data to keep out; default: 0.2.",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Local folder to copy HDF5 files to, once a node."),
    ] = None,
    masters: Annotated[
        int | None,
        typer.Option(min=0, help="1: one master; more: sub-masters under one; 0: none."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Below each master.")] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Ranks of a worker, which share each batch.")
    ] = None,
    every: Annotated[
        int | None, typer.Option(min=1, metavar="STEPS", help="From one exchange to the next.")
    ] = None,
    synchronous: Annotated[
        bool, typer.Option("--synchronous", help="The master waits for all of its workers.")
    ] = False,
    staleness_aware: Annotated[
        bool, typer.Option("--staleness-aware", help="Smaller steps with older gradients.")
    ] = False,
    lower_momentum: Annotated[
        bool, typer.Option("--lower-momentum", help="By what asynchrony adds to it.")
    ] = False,
    momentum: Annotated[
        float | None, typer.Option(help="Of the strategy's rule, or else of the optimizer.")
    ] = None,
    moving_rate: Annotated[
        float | None, typer.Option(help="Of elastic averaging: workers times alpha.")
    ] = None,
    kappa: Annotated[
        float | None, typer.Option(help="Of gradient energy matching: how much of the pace.")
    ] = None,
    upward: Annotated[
        str | None,
        typer.Option(
            metavar="EXCHANGES|auto", help="Of a sub-master with workers, to one with its master."
        ),
    ] = None,
) -> None:
    """Train one model on one data set by one strategy."""
    from . import train as job

    options = job.Options(
        model, data, strategy.value, epochs, batch_size, optimizer and optimizer.value,
        learning_rate, seed,
        quiet, json, one_copy, timeline, schedule.value, warm_up,
        batch_rule and batch_rule.value, base_batch_size, accumulate, clip_norm,
        compression and compression.value, patience, target, report_every, checkpoint,
        checkpoint_every, resume,
        features, labels, validation, cache, masters, workers, devices, every, synchronous,
        staleness_aware, lower_momentum, momentum, moving_rate, kappa, upward,
    )  # fmt: skip
    try:
        ranks = options.check(ranks)
        if launch.under_mpi():
            if ranks is not None:
                raise ValueError(f"-n {ranks}, but mpiexec or srun has started the ranks already")
            raise typer.Exit(job.run_rank(options))
        grace = SAVING_SECONDS if checkpoint else 5.0
        words = ["-m", "tutorial_dl", *options.words()]
        done = launch.run_ranks(ranks or 1, words, grace=grace, survive=options.has_master)
    except (ValueError, launch.LaunchError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        newest = max(Path(checkpoint).glob("step_*"), default=None) if checkpoint else None
        fail("interrupted" + (f"; --resume goes on from {newest}" if newest else ""), 130)
    if done.returncode not in (0, 1, 2):  # those have said why
        who = "the master (rank 0)" if options.has_master else "a rank"  # workers may be lost
        fail(f"{who} was ended by {ending(done.returncode)}", 1)
    raise typer.Exit(done.returncode)


@app.command()
def layout(
    masters: Annotated[
        int | None, typer.Option(help="1; 2 or more: sub-masters under one master; 0: none.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Below each (sub-)master.")] = None,
    devices: Annotated[int | None, typer.Option(help="Ranks of a worker, for one batch.")] = None,
    groups: Annotated[int, typer.Option(help="Parameter sets that a search tries at once.")] = 1,
    folds: Annotated[int, typer.Option(help="Of cross-validation, trained at once.")] = 1,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", help="How many there are, all counted.")
    ] = None,
    node_size: Annotated[
        int | None, typer.Option(min=1, metavar="RANKS", help="So many ranks are on each node.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Roles as JSON; - prints them.")
    ] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE", help="A picture: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Show which rank plays which role: master, sub-master, worker."""
    from . import layout as command

    try:
        command.main(groups, folds, masters, workers, devices, ranks, node_size, json, figure)
    except (ValueError, OSError) as error:
        fail(str(error))


@app.command()
def bench(
    ranks: Annotated[int, typer.Option("-n", "--ranks", help="Ranks to start.")] = 2,
    seconds: Annotated[float, typer.Option(help="Of measuring, more or less.")] = 60.0,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the rows there; - prints them.")
    ] = None,
) -> None:
    """Time a training step of three networks against Keras, and against PyTorch where it is."""
    from .. import bench as benches

    try:
        benches.main(ranks, seconds, json)
    except (ValueError, launch.LaunchError, OSError, subprocess.TimeoutExpired) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted", 130)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Check what this machine needs to run ranks and clusters; say how to mend what is missing."""
    from . import doctor as checks

    raise typer.Exit(checks.main(json))
