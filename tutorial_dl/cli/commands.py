"""The command line. Heavy packages are imported only after a command has checked its options."""

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
    help="Distributed deep learning over MPI: train, inspect, learn.",
)

app.add_typer(cluster.app, name="cluster")
Strategy = StrEnum("Strategy", list(strategies.NAMES))
Optimizer = StrEnum("Optimizer", list(optimizers.NAMES))
Compression = StrEnum("Compression", list(compressions.NAMES))
Schedule = StrEnum("Schedule", list(rates.SCHEDULES))
BatchRule = StrEnum("BatchRule", list(rates.RULES))
SAVING_SECONDS = 60.0  # after SIGTERM, the time that ranks have to write a checkpoint
Ranks = Annotated[
    int | None,
    typer.Option(
        "-n", "--ranks", help="Number of ranks to start; leave it out under mpiexec, srun or aprun."
    ),
]


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"tutorial-dl {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def fail(message: str, status: int = 2) -> None:
    """Print `error: MESSAGE` on standard error and exit with `status`."""
    print(f"error: {message}", file=sys.stderr, flush=True)
    raise typer.Exit(status)


def ending(status: int) -> str:
    """How the rank that did not end by itself was ended, according to mpiexec's exit status."""
    number = status - 128 if status > 128 else status
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"status {status}"
    return f"signal {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


@app.command()
def run(
    ranks: Annotated[
        int, typer.Option("-n", "--ranks", help="Largest number of ranks to train on.")
    ] = 4,
    report: Annotated[Path, typer.Option(help="HTML file for the report.")] = Path("report.html"),
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the results as JSON; - prints them.")
    ] = None,
) -> None:
    """Train on handwritten digits by each strategy, compare the results and write a report."""
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
        str,
        typer.Option(
            help="Model: a name (curve, softmax, dense, mlp, cnn, lstm), or module:function."
        ),
    ] = "dense",
    data: Annotated[
        str,
        typer.Option(
            help="Data: a name (digits, curve, events), module:function, or HDF5 files (paths "
            "separated by commas, a pattern in quotes, or a .txt file that lists paths)."
        ),
    ] = "digits",
    strategy: Annotated[Strategy, typer.Option(help="Rule by which the ranks train together.")] = (
        Strategy.synchronous
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Number of passes through the data.")] = 5,
    batch_size: Annotated[
        int,
        typer.Option(
            min=1,
            help="Samples per update, over all ranks; with asynchronous workers, per worker.",
        ),
    ] = 32,
    optimizer: Annotated[
        Optimizer | None,
        typer.Option(help="Optimizer; default: adam, or the one that the strategy needs."),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(min=0.0, help="Learning rate; default: the optimizer's own.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of initial weights and sample order.")] = 0,
    one_copy: Annotated[
        bool,
        typer.Option(
            "--one-copy",
            help="Keep one copy of the weights per node, to save memory (synchronous only).",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Hide the progress bar.")] = False,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the result as JSON; - prints it.")
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Record what every rank does when: .json for Perfetto, .png, .svg or .pdf for a "
            "figure.",
        ),
    ] = None,
    schedule: Annotated[
        Schedule, typer.Option(help="How the learning rate decays over the epochs.")
    ] = Schedule.constant,
    warm_up: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="EPOCHS", help="Raise the learning rate over the first EPOCHS epochs."
        ),
    ] = 0.0,
    batch_rule: Annotated[
        BatchRule | None,
        typer.Option(help="Scale the learning rate by a rule of batch size / base batch size."),
    ] = None,
    base_batch_size: Annotated[
        int, typer.Option(min=1, help="Batch size for which the learning rate was tuned.")
    ] = 32,
    accumulate: Annotated[
        int,
        typer.Option(
            min=1, help="Micro-batches per batch, computed one after the other to save memory."
        ),
    ] = 1,
    clip_norm: Annotated[
        float | None, typer.Option(help="Clip gradients to this global norm.")
    ] = None,
    compression: Annotated[
        Compression | None, typer.Option(help="Reduce gradients by this compression method.")
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="EPOCHS",
            help="Stop after EPOCHS epochs without a lower validation loss.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC=X", help="Stop when METRIC reaches X, for example val_accuracy=0.97."
        ),
    ] = None,
    report_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="STEPS", help="Print loss and speed every STEPS steps."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Write a checkpoint to FOLDER after each epoch."),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="STEPS", help="Also write a checkpoint every STEPS steps."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue from the newest checkpoint, if there is one."),
    ] = False,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Names of the input datasets in HDF5 files; default: features.",
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Names of the target datasets in HDF5 files; default: labels.",
        ),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            metavar="FILES|SHARE",
            help="HDF5 files to validate on, or the fraction of --data to hold out; default: 0.2.",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Local folder for copies of HDF5 files, made once per node."
        ),
    ] = None,
    masters: Annotated[
        int | None,
        typer.Option(
            min=0, help="1: one master; 2 or more: sub-masters under one master; 0: no master."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Workers per master or sub-master.")
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks per worker; they compute each batch together."),
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="STEPS", help="Steps of a worker per exchange with its master."
        ),
    ] = None,
    synchronous: Annotated[
        bool, typer.Option("--synchronous", help="Make the master wait for all of its workers.")
    ] = False,
    staleness_aware: Annotated[
        bool,
        typer.Option(
            "--staleness-aware",
            help="Divide the learning rate of an update by 1 + its staleness (downpour).",
        ),
    ] = False,
    lower_momentum: Annotated[
        bool,
        typer.Option(
            "--lower-momentum",
            help="Reduce momentum by the implicit momentum of asynchrony (downpour).",
        ),
    ] = False,
    momentum: Annotated[
        float | None,
        typer.Option(
            help="Momentum of elastic averaging or energy matching, else of the optimizer."
        ),
    ] = None,
    moving_rate: Annotated[
        float | None,
        typer.Option(help="Moving rate of elastic averaging: number of workers times alpha."),
    ] = None,
    kappa: Annotated[
        float | None,
        typer.Option(help="Energy factor kappa of energy matching; 1 matches momentum SGD."),
    ] = None,
    upward: Annotated[
        str | None,
        typer.Option(
            metavar="EXCHANGES|auto",
            help="Worker exchanges per exchange of a sub-master with the top master.",
        ),
    ] = None,
) -> None:
    """Train a model on a data set by one strategy."""
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
                raise ValueError(
                    f"-n {ranks}, but mpiexec or srun has started the ranks already; leave out -n"
                )
            raise typer.Exit(job.run_rank(options))
        grace = SAVING_SECONDS if checkpoint else 5.0
        words = ["-m", "tutorial_dl", *options.words()]
        done = launch.run_ranks(ranks or 1, words, grace=grace, survive=options.has_master)
    except (ValueError, launch.LaunchError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        newest = max(Path(checkpoint).glob("step_*"), default=None) if checkpoint else None
        fail("interrupted" + (f"; --resume goes on from {newest}" if newest else ""), 130)
    if done.returncode not in (0, 1, 2):  # with these, a rank has printed the reason
        who = "the master (rank 0)" if options.has_master else "a rank"  # workers may be lost
        fail(f"{who} was ended by {ending(done.returncode)}", 1)
    raise typer.Exit(done.returncode)


@app.command()
def layout(
    masters: Annotated[
        int | None,
        typer.Option(help="1: one master; 2 or more: sub-masters under one master; 0: no master."),
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Workers per master or sub-master.")] = None,
    devices: Annotated[
        int | None, typer.Option(help="Ranks per worker; they compute each batch together.")
    ] = None,
    groups: Annotated[int, typer.Option(help="Parameter sets that a search tries at once.")] = 1,
    folds: Annotated[int, typer.Option(help="Cross-validation folds trained at once.")] = 1,
    ranks: Annotated[
        int | None, typer.Option("-n", "--ranks", help="Number of ranks, masters included.")
    ] = None,
    node_size: Annotated[
        int | None, typer.Option(min=1, metavar="RANKS", help="Number of ranks per node.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the roles as JSON; - prints them.")
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Draw the layout as .png, .svg or .pdf."),
    ] = None,
) -> None:
    """Show the role of each rank: master, sub-master or worker."""
    from . import layout as command

    try:
        command.main(groups, folds, masters, workers, devices, ranks, node_size, json, figure)
    except (ValueError, OSError) as error:
        fail(str(error))


@app.command()
def bench(
    ranks: Annotated[int, typer.Option("-n", "--ranks", help="Number of ranks to start.")] = 2,
    seconds: Annotated[float, typer.Option(help="Approximate time to measure, in seconds.")] = 60.0,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the rows as JSON; - prints them.")
    ] = None,
) -> None:
    """Time a training step of three networks against Keras, and PyTorch if installed."""
    from .. import bench as benches

    try:
        benches.main(ranks, seconds, json)
    except (ValueError, launch.LaunchError, OSError, subprocess.TimeoutExpired) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted", 130)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check what ranks and clusters need on this machine, and say how to fix what is missing."""
    from . import doctor as checks

    raise typer.Exit(checks.main(json))
