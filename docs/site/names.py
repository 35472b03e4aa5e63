"""The notebooks by name. Slides and pages reach a notebook by its name; here it gets its number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / "notebooks"


class Notebook(NamedTuple):
    """A notebook of the course: `number` of its place, `title`, `stem` of its file's name."""

    number: int
    title: str
    stem: str


def _read(folder: Path) -> dict[str, Notebook]:
    """name -> number, title. A notebook is called <number>_<name>.ipynb, and its first cell begins
    with `# <number>. <title>`."""
    found = {}
    for file in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        number, _, name = file.stem.partition("_")
        first = "".join(json.loads(file.read_text(encoding="utf-8"))["cells"][0]["source"])
        title = first.partition("\n")[0].removeprefix(f"# {int(number)}. ")
        found[name] = Notebook(int(number), title, file.stem)
    return found


NOTEBOOKS = _read(FOLDER)
