"""Cells of notebooks: which public names they use, and which figures they have made."""

from __future__ import annotations

import ast
import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from names import NOTEBOOKS
from public import ROOTS
from tutorial_dl.figure_style import KEPT_FIGURE, KEPT_FILM

GIF = re.compile(r'src="data:image/gif;base64,([^"]+)"')
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A code cell: its `notebook` (a name of names.py), its `id`, and the heading above it.

    `uses` are full names; `pictures` are (ending, bytes), none if the notebook has not been run.
    """

    notebook: str
    id: str
    heading: str
    code: str
    uses: frozenset[str]
    pictures: tuple[tuple[str, bytes], ...] = ()

    @property
    def label(self) -> str:
        """The name by which pages link to the cell."""
        return f"cell-{self.notebook}-{self.id}".replace("_", "-").lower()

    @property
    def title(self) -> str:
        about = NOTEBOOKS[self.notebook]
        return f"notebook {about.number}, {about.title}"


def read(folder: Path) -> list[Cell]:
    """All code cells of the notebooks in a folder."""
    found = []
    for name, about in NOTEBOOKS.items():
        file = folder / f"{about.stem}.ipynb"
        if file.exists():
            cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
            found += _cells(name, cells)
    return found


def _cells(notebook: str, cells: Iterable[dict]) -> Iterable[Cell]:
    heading, known = NOTEBOOKS[notebook].title, {}
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = (HEADING.findall(text) or [heading])[-1]
        elif cell["cell_type"] == "code":
            uses, code = used(text, known), without_magics(text)
            pictures = tuple(pictures_of(cell))
            yield Cell(notebook, cell["id"], heading, code, uses, pictures)


def without_magics(text: str) -> str:
    """The cell's Python: without lines that begin with % or !."""
    return "\n".join(line for line in text.splitlines() if not line.startswith(("%", "!")))


def used(text: str, known: dict[str, str]) -> frozenset[str]:
    """The full names that a cell uses. `known` (name in the cell: full name) learns its imports."""
    try:
        tree = ast.parse(without_magics(text))
    except SyntaxError:  # a cell that writes a file in another language
        return frozenset()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ROOTS:
            for one in node.names:
                known[one.asname or one.name] = f"{node.module}.{one.name}"
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] in ROOTS:
                    known[one.asname or one.name.partition(".")[0]] = (
                        one.name if one.asname else one.name.partition(".")[0]
                    )
    found = set()
    for node in ast.walk(tree):
        words = []
        while isinstance(node, ast.Attribute):
            words.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in known:
            found.add(".".join([known[node.id], *reversed(words)]))
    return frozenset(found)


def pictures_of(cell: dict) -> Iterable[tuple[str, bytes]]:
    """(ending of a file's name, content) of the figures and films that a cell has shown."""
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "image/png" in data:
            yield ".png", base64.b64decode("".join(data["image/png"]))
        else:
            for film in GIF.findall("".join(data.get("text/html", ""))):
                yield ".gif", base64.b64decode(film)


def with_labels(notebook: str, content: dict, labelled: Iterable[Cell]) -> dict:
    """The notebook with a target before each of these cells, and links that fit the site."""
    labels = {cell.id: cell.label for cell in labelled if cell.notebook == notebook}
    cells = []
    for cell in content["cells"]:
        if cell["cell_type"] == "code" and cell["id"] in labels:
            target = f"({labels[cell['id']]})=\n"
            cells.append(
                {"cell_type": "markdown", "id": f"to-{cell['id']}"[:64], "metadata": {},
                 "source": target}
            )  # fmt: skip
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"]).replace("](../docs/", "](../")
            cell = cell | {"source": text}
        if cell["cell_type"] == "code":
            outputs = as_shown(cell.get("outputs", ()))
            for output in outputs:
                for only_slides in (KEPT_FIGURE, KEPT_FILM):
                    output.get("data", {}).pop(only_slides, None)
            cell = cell | {"outputs": outputs}
        cells.append(cell)
    return content | {"cells": cells}


def as_shown(outputs: Iterable[dict]) -> list[dict]:
    """Outputs as JupyterLab shows them: without text that was written over, such as progress."""
    made: list[dict] = []
    for output in outputs:
        if output["output_type"] == "stream" and made and made[-1].get("name") == output["name"]:
            made[-1]["text"] += "".join(output["text"])
        elif output["output_type"] == "stream":
            made.append(output | {"text": "".join(output["text"])})
        else:
            made.append(output)
    for output in made:
        if output["output_type"] == "stream":
            output["text"] = "\n".join(map(_written_over, output["text"].split("\n")))
    return [one for one in made if one.get("text", "x").strip() and one.get("data", True)]


def _written_over(line: str) -> str:
    """A line in which what follows a carriage return replaces what stood there."""
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown.rstrip() if "\r" in line else shown
