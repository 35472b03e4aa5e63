"""What a notebook's file holds: its cells, the folded solutions, the cells left to be done."""

from __future__ import annotations

import json
import re
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


class Notebook:
    """A notebook by the number that its name begins with, as "05"."""

    def __init__(self, number: str):
        (self.path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
        self.all: list[dict] = json.loads(self.path.read_text(encoding="utf-8"))["cells"]

    def cells(self, kind: str) -> list[str]:
        """Sources of all cells of a kind, "code" or "markdown", in order."""
        return ["".join(cell["source"]) for cell in self.all if cell["cell_type"] == kind]

    def solution_of(self, exercise: str) -> str:
        """The code in the <details> block that checks `exercise`."""
        text = "\n".join(self.cells("markdown"))
        blocks = re.findall(r"<details>.*?```python\n(.*?)```", text, re.DOTALL)
        (code,) = [block for block in blocks if f'check("{exercise}"' in block]
        return code

    def open_cell(self, exercise: str) -> str:
        """The cell that a learner finds, without its %%px line."""
        (code,) = [cell for cell in self.cells("code") if f'check("{exercise}"' in cell]
        return re.sub(r"\A%%px.*\n", "", code)
