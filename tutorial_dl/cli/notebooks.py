"""`python -m tutorial_dl notebooks`: the notebooks of the course, installed with the package."""

import re
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from ..words import counted
from .errors import fail, one_line
from .parameters import flag

app = typer.Typer(
    no_args_is_help=True,
    help="The notebooks of the course: list, copy or run them; see what is solved.",
)
NAMES = re.compile(r"\]\((\w+\.ipynb)\)")


def notebook_files() -> list[Path]:
    """The files of the course, in order: those that the table in notebooks/README.md names, of a
    source tree or else as installed. A user's own notebooks beside them are left out.
    """
    table = Path(__file__).parents[2] / "notebooks/README.md"
    if not table.exists():
        with suppress(metadata.PackageNotFoundError):
            for file in metadata.files("tutorial-dl") or ():
                if file.match("tutorial-dl/notebooks/README.md"):
                    table = Path(file.locate()).resolve()
    names = NAMES.findall(table.read_text(encoding="utf-8")) if table.exists() else ()
    return [table.parent / name for name in names]


@app.command("list")
def list_() -> None:
    """List the notebooks."""
    for file in notebook_files():
        print(file.name)


@app.command()
def copy(
    folder: Annotated[Path, typer.Argument(help="Where to copy them; it is made if need be.")],
    force: flag("Replace notebooks that are there.") = False,
) -> None:
    """Copy the notebooks to a folder of your own, where those that are there already are kept."""
    from ..course.progress import without_outputs

    files = notebook_files()
    if not files:
        fail("the notebooks were not installed: reinstall the package from its wheel", 1)
    new = [file for file in files if force or not (folder / file.name).exists()]
    with one_line():
        folder.mkdir(parents=True, exist_ok=True)
        for file in new:
            (folder / file.name).write_text(without_outputs(file), encoding="utf-8")
    kept = f"; kept {len(files) - len(new)} as they are there (--force replaces them)"
    kept *= len(new) < len(files)
    print(f"{folder}: copied {counted(len(new), 'notebook')}{kept}")


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


@app.command()
def progress(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of copies, one per learner; by default, my_notebooks."),
    ] = None,
) -> None:
    """Show which exercises are solved, by what their checks have said in saved notebooks.

    For a class, learners who wish to be seen work in a folder of their own within a shared one:
    `notebooks progress SHARED/*` shows a table.
    """
    from ..course.progress import table

    with one_line():
        print(table(notebook_files(), folders or [Path("my_notebooks")]))


def select(names: list[str]) -> list[Path]:
    """The files of the notebooks with these names or numbers; all without any."""
    files = notebook_files()
    by_word = {}
    for file in files:
        number, _, name = file.stem.partition("_")
        by_word |= dict.fromkeys((number, str(int(number)), name, file.stem, file.name), file)
    for name in names:
        if name not in by_word:
            fail(f"there is no notebook {name!r}; `notebooks list` shows all")
    return [by_word[name] for name in names] or files
