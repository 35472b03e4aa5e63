"""Whether cells of this notebook use TensorFlow on the ranks, told before any of them has run.

Four engines on two cores take six seconds to import it. If it is foreseen, one process does, while
the controller starts, and the engines are forked from that process (processes.py).
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

# JupyterLab and Jupyter Server tell a kernel its notebook's path by this variable.
NOTEBOOK = "JPY_SESSION_NAME"
IN_VS_CODE = "__vsc_ipynb_file__"  # a variable of the notebook's own
ON_RANKS = re.compile(r"^%%?(px|mpi)\b", re.MULTILINE)
IMPORTS = re.compile(
    r"^\s*(import|from)\s+(keras|tensorflow|tutorial_dl\.(layers|horovod))\b"
    r"|^\s*from\s+tutorial_dl(\.replica)?\s+import\b.*\b(KerasReplica|layers|horovod)\b",
    re.MULTILINE,
)
# What a cell sets before it imports Keras must be set when Keras is imported.
SETS = re.compile(r"(environ|putenv|%env|%set_env)\b.*\b(KERAS_|TF_|CUDA_|ROCM_|XLA_|OMP_)")


def tensorflow(notebook: str | None) -> bool:
    """Whether cells of the notebook import TensorFlow, or Keras, on the ranks.

    Args:
        notebook: Its path; None if it is not known.
    """
    cells = list(_cells(notebook))
    if any(map(SETS.search, cells)):
        return False
    return any(ON_RANKS.search(cell) and IMPORTS.search(cell) for cell in cells)


def this_notebook() -> str | None:
    """The path of the notebook that this kernel belongs to, if it is known."""
    from IPython import get_ipython

    shell = get_ipython()
    of_vs_code = shell.user_ns.get(IN_VS_CODE) if shell is not None else None
    return of_vs_code or os.environ.get(NOTEBOOK)


def _cells(notebook: str | None) -> Iterator[str]:
    """The sources of its code cells as they were last saved; none if it can't be read."""
    if not notebook:
        return
    try:
        cells = json.loads(Path(notebook).read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            if cell["cell_type"] == "code":
                yield "".join(cell["source"])
    except (OSError, ValueError, KeyError, TypeError):  # a console, or a name that is no path
        return
