"""The parameters of commands, from which typer makes the options of the command line."""

import inspect
from enum import StrEnum
from typing import Annotated

import typer

from .. import config
from ..options import Option
from .errors import fail

RANKS = ("-n", "--ranks")


def parameter(option: Option) -> inspect.Parameter:
    """The parameter from which typer makes an option of the command line."""
    kind, default = option.kind, option.unset
    if option.choices:
        kind = StrEnum(option.name, list(option.choices))
        default = default and kind(default)
    shown = kind is not bool if default == option.default else str(option.default)
    off = option.off or f"--no-{option.flag[2:]}"
    flag = f"{option.flag}/{off}" if kind is bool else option.flag
    asked = typer.Option(
        *([option.short] if option.short else []),
        flag,
        callback=checked(option) if kind in (int, float) else None,
        metavar=option.metavar,
        help=option.help,
        show_default=shown,
        rich_help_panel=option.panel,
    )
    kind = Annotated[kind if default is not None else kind | None, asked]
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
    )


def checked(option: Option):
    """The callback that checks the option's value, and names the option if it is wrong."""

    def check(value):
        try:
            return option.checked(value)
        except ValueError as error:
            fail(f"{option.flag}: {error}")

    return check


def number(help: str, *names: str, **more):
    return Annotated[int | None, typer.Option(*names, help=help, **more)]


def flag(help: str, *names: str, **more):
    return Annotated[bool, typer.Option(*names, help=help, **more)]


def file_option(help: str):
    return Annotated[str | None, typer.Option(metavar="FILE", help=help)]


def own(name: str, kind, default, help: str, *names: str, **more) -> inspect.Parameter:
    """An option that is no option of a run."""
    kind = Annotated[kind, typer.Option(*names, help=help, **more)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def of_files(**helps: str) -> list[inspect.Parameter]:
    panel = config.SearchConfig.panel
    return [
        own(name, str | None, None, help, metavar="FILE", rich_help_panel=panel)
        for name, help in helps.items()
    ]


OF_SEARCH = [  # options of `tune` that `train` does not have
    *of_files(space="What is searched, in TOML: docs/tuning.md."),
    *map(parameter, config.SEARCH.values()),
    *of_files(
        study="Keep the trials in FILE.",
        report="Write a report with plots, as HTML.",
        best_to="Write the best options, for train --config.",
    ),
]
OF_JOB = [  # options of `job train` that `train` does not have
    own("profile", str, "slurm", "Name or TOML file of a profile; `cluster profiles` lists them."),
    own("hand_over", bool, False, "Submit the job, and print its number.", "--submit"),
    own(
        "chain",
        int,
        1,
        "Submit so many jobs, one after the other: for sites that let no job be put back.",
        min=1,
    ),
]
# Options of earlier versions, which say what to write now
GONE = [own(name, str | None, None, "", hidden=True) for name in ("suggesters", "sizes")]

Part = StrEnum("Part", ["train", "validation"])
N = own("ranks", int | None, None, "Number of ranks to start.", *RANKS)
# fmt: off
APPLIED = [  # options of `evaluate` and `predict`
    own("model_file", str, inspect.Parameter.empty,
        "The trained model, as train --save has written it.", metavar="FILE"),
    own("model", str | None, None,
        "The model as for train: for .npz, or where it has classes of your own."),
    *(parameter(config.OPTIONS[name]) for name in ("data", "features", "labels", "validation")),
    own("part", Part, Part.validation, "Which part of the data."),
    own("batch_size", int, 512, "Samples that a rank computes at once.", min=1),
    own("run_code", bool, False, "Run the Python code of Lambda layers in a file of your own.",
        "--run-code"),
    N,
]
# fmt: on
