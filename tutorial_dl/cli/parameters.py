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
    flag = f"{option.flag}/--no-{option.flag[2:]}" if kind is bool else option.flag
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


def file_option(help: str):
    return Annotated[str | None, typer.Option(metavar="FILE", help=help)]


SEARCH = "Search"


def of_search(name: str, kind, default, help: str, *names: str, **more) -> inspect.Parameter:
    """An option of `tune` that `train` does not have."""
    asked = typer.Option(*names, help=help, rich_help_panel=SEARCH, **more)
    kind = Annotated[kind, asked]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


# fmt: off
OF_SEARCH = [
    of_search("space", str | None, None, "What is searched, in TOML: docs/tuning.md.",
              metavar="FILE"),
    of_search("sampler", str, "bayesian",
              "How sets are chosen: random, grid, tpe, bayesian, evolutionary or cmaes."),
    of_search("trials", int, 20, "Sets of values to try.", min=1),
    of_search("groups", int, 1, "Sets of values to train at once.", min=1),
    of_search("folds", int, 1, "Folds of cross-validation; 1: the data's own validation part.",
              min=1),
    of_search("merit", str, "val_loss",
              "Figure of merit: a column of the history, or module:function of the trainer."),
    of_search("maximise", bool | None, None,
              "Whether higher is better; default: for accuracy and the like.",
              "--maximise/--minimise"),
    of_search("pruner", str, "none",
              "Stop bad trials early: none, median, successive_halving or hyperband."),
    of_search("deadline", float, 3600.0, "Seconds that one training may take."),
    of_search("study", str | None, None, "Keep the trials in FILE.", metavar="FILE"),
    of_search("report", str | None, None, "Write a report with plots, as HTML.", metavar="FILE"),
    of_search("best_to", str | None, None,
              "Write the best options, for train --config.", metavar="FILE"),
]
# Options of earlier versions, which say what to write now
GONE = [of_search(name, str | None, None, "", hidden=True) for name in ("suggesters", "sizes")]
# fmt: on


def of_data(name: str):
    """An option that `train` has, too."""
    one = config.OPTIONS[name]
    return Annotated[str | None, typer.Option(one.flag, metavar=one.metavar, help=one.help)]


MODEL_FILE = Annotated[
    str, typer.Option(metavar="FILE", help="The trained model, as train --save has written it.")
]
MODEL = Annotated[
    str | None,
    typer.Option(help="The model as for train: for .npz, or where it has classes of your own."),
]
Part = StrEnum("Part", ["train", "validation"])
PART = Annotated[Part, typer.Option(help="Which part of the data.")]
BATCH_SIZE = Annotated[int, typer.Option(min=1, help="Samples that a rank computes at once.")]
