"""`python -m tutorial_dl notebooks`: the notebooks of the course, installed with the package."""

import shutil
import time
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from .errors import fail, one_line
from .parameters import flag

app = typer.Typer(no_args_is_help=True, help="List the notebooks of the course, copy or run them.")


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
    force: flag("Replace notebooks that are there.") = False,
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


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Folder for the notebooks with their outputs.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Names or numbers, such as allreduce or 5; by default, all."),
    ] = None,
    again: flag("Run also what is up to date in the folder.") = False,
) -> None:
    """Run notebooks from top to bottom, in order, and keep them with their outputs.

    A notebook that was run there before is left alone while it and the packages are unchanged.
    """
    from ..course.executing import CellFailed, execute, is_current

    chosen = select(names or [])
    with one_line():
        out.mkdir(parents=True, exist_ok=True)
        for file in chosen:
            result = out / file.name
            if not again and is_current(file, result):
                print(f"{file.stem}: up to date")
                continue
            began = time.monotonic()
            try:
                execute(file, result.resolve())
            except CellFailed as error:
                fail(str(error), 1)
            print(f"{file.stem}: {time.monotonic() - began:.0f} s", flush=True)


def select(names: list[str]) -> list[Path]:
    """The files of the notebooks with these names or numbers; all without any."""
    files = found()
    by_word = {}
    for file in files:
        number, _, name = file.stem.partition("_")
        by_word |= dict.fromkeys((number, str(int(number)), name, file.stem, file.name), file)
    for name in names:
        if name not in by_word:
            fail(f"there is no notebook {name!r}; `notebooks list` shows all")
    return [by_word[name] for name in names] or files
