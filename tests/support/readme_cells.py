"""The cells of a notebook that README.md shows."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
HEAD = "## Train, plot, save, reload, compare"


def pasted() -> list[str]:
    """The cells of the section for notebooks, in order: a Keras model on two ranks."""
    section = README.read_text().split(HEAD)[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)
