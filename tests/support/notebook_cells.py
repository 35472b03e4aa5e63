"""Reads a notebook's file: its cells, its folded solutions and its unfinished cells."""

from __future__ import annotations

import json
import re

from tutorial_dl.cli.notebooks import select


class Notebook:
    """The notebook whose name begins with this number, as "05"."""

    def __init__(self, number: str):
        (self.path,) = select([number])
        self.all: list[dict] = json.loads(self.path.read_text(encoding="utf-8"))["cells"]

    def cells(self, kind: str) -> list[str]:
        """The sources of all cells of a kind, "code" or "markdown", in order."""
        return ["".join(cell["source"]) for cell in self.all if cell["cell_type"] == kind]

    def solution_of(self, exercise: str) -> str:
        """The code in the <details> block that checks `exercise`."""
        text = "\n".join(self.cells("markdown"))
        blocks = re.findall(r"<details>.*?```python\n(.*?)```", text, re.DOTALL)
        (code,) = [block for block in blocks if f'check("{exercise}"' in block]
        return code

    def open_cell(self, exercise: str) -> str:
        """The unfinished cell that a learner completes, without its %%px line."""
        (code,) = [cell for cell in self.cells("code") if f'check("{exercise}"' in cell]
        return re.sub(r"\A%%px.*\n", "", code)
