"""The notebooks by name. Slides and pages reach a notebook by its name; here it gets its number."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tutorial_dl.cli.notebooks import notebook_files


class Notebook(NamedTuple):
    """A notebook of the course: `number` of its place, `title`, `stem` of its file's name."""

    number: int
    title: str
    stem: str


def _read(files: Iterable[Path]) -> dict[str, Notebook]:
    """name -> number, title. A notebook is called <number>_<name>.ipynb, and its first cell begins
    with `# <number>. <title>`."""
    read = {}
    for file in files:
        number, _, name = file.stem.partition("_")
        first = "".join(json.loads(file.read_text(encoding="utf-8"))["cells"][0]["source"])
        title = first.partition("\n")[0].removeprefix(f"# {int(number)}. ")
        read[name] = Notebook(int(number), title, file.stem)
    return read


NOTEBOOKS = _read(notebook_files())
