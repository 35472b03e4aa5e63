"""`python -m tutorial_dl notebooks`: the notebooks of the course, installed with the package."""

import shutil
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from .errors import fail, one_line

app = typer.Typer(no_args_is_help=True, help="List the notebooks of the course, or copy them.")


def found() -> list[Path]:
    """The notebooks' files, in order: those of a source tree, else those that were installed."""
    here = sorted(Path(__file__).parents[2].glob("notebooks/*.ipynb"))
    if here:
        return here
    try:
        files = metadata.files("tutorial-dl") or []
    except metadata.PackageNotFoundError:
        files = []
    return sorted(Path(file.locate()).resolve() for file in files if file.suffix == ".ipynb")


@app.command("list")
def list_() -> None:
    """List the notebooks."""
    for file in found():
        print(file.name)


@app.command()
def copy(
    folder: Annotated[Path, typer.Argument(help="Where to copy them; it is made if need be.")],
    force: Annotated[bool, typer.Option(help="Replace notebooks that are there.")] = False,
) -> None:
    """Copy the notebooks to a folder of your own, to run and change them there."""
    files = found()
    if not files:
        fail("the notebooks were not installed: reinstall the package from its wheel", 1)
    there = [file.name for file in files if (folder / file.name).exists()]
    if there and not force:
        fail(f"{folder / there[0]} exists; --force replaces it and {len(there) - 1} others")
    with one_line():
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, folder / file.name)
    print(f"{len(files)} notebooks in {folder}: jupyter lab {folder}")
