"""The command line. Heavy packages are imported only after a command has checked its options."""

import inspect
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from numba_kernels import launch

from .. import __version__, config
from . import cluster, flags, layout, notebooks  # noqa: F401  (flags changes what --help shows)
from . import ranks as ranks_of
from .errors import fail, one_line
from .files import check_writable
from .parameters import (
    APPLIED,
    GONE,
    OF_JOB,
    OF_SEARCH,
    RANKS,
    file_option,
    flag,
    number,
    own,
    parameter,
)

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Distributed deep learning over MPI: train, inspect, learn.",
)

app.add_typer(cluster.app, name="cluster")
app.add_typer(notebooks.app, name="notebooks")
SAVING_SECONDS = 60.0  # that ranks have for a checkpoint after a batch system's warning


def fill_in(context: typer.Context, file: Path | None) -> Path | None:
    """Let the options of a --config file stand in for those that the command line leaves out."""
    if file is None or context.resilient_parsing:
        return file
    try:
        context.default_map = config.read(file)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if launch.under_mpi():  # which has started the ranks that there are
        context.default_map.pop("ranks", None)
    return file


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"tutorial-dl {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: flag(
        "Show the version and exit.", "--version", callback=show_version, is_eager=True
    ) = False,
) -> None:
    pass


def are_started(ranks: int | None) -> bool:
    """Whether this is one of ranks that mpiexec has started; ValueError if -n asks for others."""
    if launch.under_mpi() and ranks is not None:
        raise ValueError(
            f"-n {ranks}, but mpiexec or srun has started the ranks already; leave out -n"
        )
    return launch.under_mpi()


@app.command()
def run(
    ranks: number("Largest number of ranks to train on.", *RANKS) = 4,
    report: Annotated[Path, typer.Option(help="HTML file for the report.")] = Path("report.html"),
    json: file_option("Write the results as JSON; - prints them.") = None,
) -> None:
    """Train on handwritten digits by each strategy, compare the results and write a report."""
    from . import run as comparison

    with one_line():
        launch.check_ranks(ranks)
        check_writable(report, json)
        raise typer.Exit(comparison.run(ranks, report, json))


def train(file: Path | None = None, **given) -> None:
    """Train a model on a data set by one strategy."""
    from ..training.progress import TERMINAL
    from . import train as job

    given = {name: getattr(value, "value", value) for name, value in given.items()}
    ranks, folder = given["ranks"], given["checkpoint"]
    try:
        asked = config.RunConfig.of(**given)
        need = job.check(asked)
        if are_started(ranks):
            raise typer.Exit(job.run_rank(asked))
        if (note := job.crowd(need or 1)) is not None:
            print(note, file=sys.stderr, flush=True)
        grace = SAVING_SECONDS if folder else 5.0
        # Both, so that a bar and the result go to the terminal on one way, and in their order.
        terminal = {TERMINAL: "both" if sys.stdout.isatty() else "1"} if sys.stderr.isatty() else {}
        least = None if asked.with_master else job.needed(need or 1)
        done = ranks_of.start(
            "train",
            need or 1,
            asked.changed(),
            grace=grace,
            survive=asked.with_master,
            least=least,
            env=terminal,
            preload=job.preload(asked.data.model),
        )
    except (ValueError, launch.LaunchError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        newest = max(Path(folder).glob("step_*"), default=None) if folder else None
        fail("interrupted" + (f"; --resume goes on from {newest}" if newest else ""), 130)
    if done.returncode not in (0, 1, 2, os.EX_TEMPFAIL):  # a rank has printed the reason of these
        who = "a rank" if done.failed is None else f"rank {done.failed}"
        if done.failed is None and (asked.with_master or least):  # each rank would have said so
            who = "mpiexec or a rank's supervisor"
        elif asked.with_master and not done.failed:
            who = "the master (rank 0)"
        fail(f"{who} was ended by {job.ending(done.returncode)}", 1)
    raise typer.Exit(done.returncode)


CONFIG = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=fill_in,
        is_eager=True,
        help="Options in a .toml file, or the .json result of a run; the command line wins.",
    ),
]
FILE = inspect.Parameter("file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CONFIG)
train.__signature__ = inspect.Signature([FILE, *map(parameter, config.OPTIONS.values())])
app.command()(train)

jobs = typer.Typer(no_args_is_help=True, help="Write or submit the file of a batch job.")
app.add_typer(jobs, name="job")


@one_line()
def train_in_a_job(file: Path | None = None, **given) -> None:
    """The file of a batch job that trains as `train` does, and goes on in a next job."""
    from .job import write

    own = {one.name: given.pop(one.name) for one in OF_JOB}
    asked = {name: getattr(value, "value", value) for name, value in given.items()}
    write(config.RunConfig.of(**asked), **own)


train_in_a_job.__signature__ = inspect.Signature(
    [FILE, *OF_JOB, *map(parameter, config.OPTIONS.values())]
)
jobs.command("train")(train_in_a_job)


def tune(file: Path | None = None, **given) -> None:
    """Search for good options: many trainings, several at once, each on its own ranks."""
    from ..tuning.search import GONE as INSTEAD
    from . import tune as job
    from .train import ending

    given = {name: getattr(value, "value", value) for name, value in given.items()}
    own = {one.name: given.pop(one.name) for one in OF_SEARCH}
    gone = [one.name for one in GONE if given.pop(one.name) is not None]
    more = {name: given.pop(name) for name in ("resume", "requeue", "json")}
    again = "; --resume goes on" if own["study"] else ""
    try:
        for name in gone:
            raise ValueError(f"--{name} is gone: {INSTEAD[name]}")
        if own["space"] is None:
            raise ValueError("tune needs --space FILE, which says what is searched")
        started = are_started(asked := given.pop("ranks"))
        if more["resume"] and own["study"] is None:
            raise ValueError("--resume needs --study FILE")
        options = own | more | {"base": config.RunConfig.of(**given).changed()}
        need = job.check(asked, **options)
        if started:
            raise typer.Exit(job.work(**options))
        status = job.start(need, options)
    except (ValueError, launch.LaunchError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail(f"interrupted{again}", 130)
    if status not in (0, 1, 2, os.EX_TEMPFAIL, 130):  # a rank has printed the reason of these
        fail(f"the coordinator (rank 0) was ended by {ending(status)}{again}", 1)
    raise typer.Exit(status)


# Options of `train` that say where the results of one training go
OF_EACH = (
    "checkpoint", "checkpoint_every", "log", "report_every", "save", "save_best", "timeline",
    "rehearse",
)  # fmt: skip
tune.__signature__ = inspect.Signature(
    [
        FILE,
        *OF_SEARCH,
        *GONE,
        *(parameter(one) for name, one in config.OPTIONS.items() if name not in OF_EACH),
    ]
)
app.command()(tune)


app.command()(layout.layout)


@app.command()
@one_line()
def compare(
    results: Annotated[list[str], typer.Argument(help="Files that train --json has written.")],
    figure: Annotated[
        str, typer.Option(metavar="FILE", help="The curves go here: .png, .svg or .pdf.")
    ] = "compared.png",
) -> None:
    """Show the results of several trainings in one table and one figure."""
    from . import comparing

    comparing.compare(results, figure)


@app.command(context_settings={"ignore_unknown_options": True})
def bench(
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    ranks: number("Number of ranks to start.", *RANKS) = 2,
    seconds: Annotated[
        float | None, typer.Option(help="Approximate time to measure, in seconds (60).")
    ] = None,
    json: file_option("Write the rows as JSON; - prints them.") = None,
) -> None:
    """Time training steps of three networks against their gradients alone, and against Keras.

    `bench time-to-accuracy` trains four models until they are good, by several optimizers.
    """
    from .. import bench as benches

    with one_line():
        benches.main(ranks, seconds, json, words or ())


ELSEWHERE = {
    "site": "make site; python docs/site draws README's figure",
    "slides": "make slides; python slides/measure.py measures their numbers",
}


def gone(
    context: typer.Context, words: Annotated[list[str] | None, typer.Argument()] = None
) -> None:
    """A command that is a script of the repository now."""
    fail(f"{context.info_name} is now, in a copy of the repository: {ELSEWHERE[context.info_name]}")


for _name in ELSEWHERE:
    app.command(_name, hidden=True, context_settings={"ignore_unknown_options": True})(gone)


@app.command()
def doctor(
    json: flag("Print the checks as JSON.", "--json") = False,
) -> None:
    """Check what ranks and clusters need on this machine, and say how to fix what is missing."""
    from . import doctor as checks

    raise typer.Exit(checks.main(json))


def evaluate(**given) -> None:
    """Evaluate a trained model. Each rank computes a share of the samples."""
    apply("evaluate", **given)


def predict(**given) -> None:
    """Write a trained model's outputs, in the order of the samples."""
    apply("predict", **given)


for _command, _name, *_more in (
    (evaluate, "json", str | None, None, "Write the metrics as JSON; - prints them."),
    (predict, "out", str, inspect.Parameter.empty, "Write the outputs: .npy or .npz."),
):
    _file = own(_name, *_more, metavar="FILE")
    _command.__signature__ = inspect.Signature([*APPLIED, _file])
    app.command()(_command)


@app.command()
@one_line()
def generate(
    model_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text: the model, as train --save wrote it.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="A GAN: its checkpoints, as train has written them."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model as for train.")] = None,
    prompt: Annotated[str, typer.Option(help="The text to continue.")] = "def ",
    characters: Annotated[int, typer.Option(min=1, help="Characters to write.")] = 300,
    temperature: Annotated[
        float, typer.Option(min=0, help="Below 1: more of what is likely; 0: the most likely.")
    ] = 0.8,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="A GAN's samples go here: .h5 or .hdf5.")
    ] = None,
    number_of_samples: Annotated[int, typer.Option("-n", help="Samples of a GAN.")] = 1000,
    condition: Annotated[
        float | None, typer.Option(help="Class, or energy in GeV, of all samples of a GAN.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
) -> None:
    """Write text with a model of data text (--model-file), or samples of a GAN (--checkpoint)."""
    if (model_file is None) == (checkpoint is None):
        raise ValueError(
            "generate needs --model-file FILE, for text, or --checkpoint FOLDER, for samples "
            "of a GAN"
        )
    from . import generating as job

    if model_file is not None:
        job.write_text(model_file, model, prompt, characters, temperature, seed)
        return
    if out is None:
        raise ValueError("samples of a GAN need --out FILE, which ends in .h5 or .hdf5")
    found = job.check(checkpoint, number_of_samples, out)
    check_writable(out)
    raise typer.Exit(job.generate(found, checkpoint, number_of_samples, out, seed, condition))


def apply(what: str, ranks: int | None, **given) -> None:
    """Run `evaluate` or `predict`, whose options are `given`."""
    from . import applying as job

    options = given | {"what": what, "part": given["part"].value}
    with one_line():
        launch.check_ranks(1 if ranks is None else ranks)
        job.check(**options)
        if are_started(ranks):
            raise typer.Exit(job.work(**options))
        raise typer.Exit(ranks_of.start(what, ranks or 1, options).returncode)
