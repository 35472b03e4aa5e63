"""The cells of the notebook that docs/notebook.md shows."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/notebook.md"
HEAD, NEXT = "## Train, plot, save, reload, compare", "\n## When a rank fails"


def pasted() -> list[str]:
    """The cells of the two sections for notebooks, in order: a Keras model on two ranks."""
    section = PAGE.read_text().split(HEAD)[1].split(NEXT)[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)
