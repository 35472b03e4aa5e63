"""Whether cells of this notebook use TensorFlow on the ranks, told before any of them has run.

Four engines on two cores take six seconds to import it. If it is foreseen, one process does, while
the controller starts, and the engines are forked from that process (processes.py).

A cell may import it itself, or a file of the user's that does (`import my_file`), which may lie
beside the notebook or be written by one of its cells (`%%writefile my_file.py`).
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# JupyterLab and Jupyter Server tell a kernel its notebook's path by this variable.
NOTEBOOK = "JPY_SESSION_NAME"
IN_VS_CODE = "__vsc_ipynb_file__"  # a variable of the notebook's own
ON_RANKS = re.compile(r"^%%?(px|mpi)\b", re.MULTILINE)
WRITES = re.compile(r"%%writefile\s+(?!-a\s)\S+\.py\s*$", re.MULTILINE)
IMPORTS = re.compile(
    r"^\s*(import|from)\s+(keras|tensorflow|tutorial_dl\.(layers|horovod))\b"
    r"|^\s*import\b.*,\s*(keras|tensorflow)\b"
    r"|^\s*from\s+tutorial_dl(\.replica)?\s+import\b.*\b(KerasReplica|layers|horovod)\b",
    re.MULTILINE,
)
# What a cell sets before it imports Keras must be set when Keras is imported.
SETS = re.compile(r"(environ|putenv|%env|%set_env)\b.*\b(KERAS_|TF_|CUDA_|ROCM_|XLA_|OMP_)")
IMPORTED = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([^#\n]+))", re.M)


def tensorflow(notebook: str | None, run: Iterable[str] = (), folder: Path | None = None) -> bool:
    """Whether cells of the notebook import TensorFlow, or Keras, on the ranks.

    Args:
        notebook: Its path; None if it is not known.
        run: Cells that have been run. A notebook's file may lack its newest ones.
        folder: Where files that cells import lie; None: the current folder.
    """
    cells = [*_cells(notebook), *run]
    for_ranks = [each for each in cells if ON_RANKS.search(each) or WRITES.match(each)]
    for_ranks += _modules(for_ranks, folder or Path())
    if any(map(SETS.search, [*cells, *for_ranks])):
        return False
    return any(map(IMPORTS.search, for_ranks))


def this_notebook() -> str | None:
    """The path of the notebook that this kernel belongs to, if it is known."""
    shell = _shell()
    of_vs_code = shell.user_ns.get(IN_VS_CODE) if shell is not None else None
    return of_vs_code or os.environ.get(NOTEBOOK)


def cells_run() -> list[str]:
    """The cells that this kernel has run, as they were typed."""
    shell = _shell()
    return list(shell.history_manager.input_hist_raw) if shell is not None else []


def _shell():
    from IPython import get_ipython

    return get_ipython()


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


def _modules(sources: Iterable[str], folder: Path) -> list[str]:
    """The text of the files in `folder` that `sources` import, and of what these import there."""
    texts: dict[Path, str] = {}
    rest = list(sources)
    while rest:
        for path in _files(rest.pop(), folder):
            if path not in texts:
                try:
                    texts[path] = path.read_text(encoding="utf-8")
                except (OSError, ValueError):  # none there, or no text: it can't be foreseen
                    texts[path] = ""
                rest.append(texts[path])
    return list(texts.values())


def _files(source: str, folder: Path) -> Iterator[Path]:
    """Where the modules lie that `source` imports, if they are files in `folder`."""
    for package, listed in IMPORTED.findall(source):
        for name in (package or listed).split(","):
            parts = [part for part in name.split(" as ")[0].strip().split(".") if part]
            for length in range(1, len(parts) + 1):
                path = folder.joinpath(*parts[:length])
                yield path.with_name(f"{path.name}.py")
                yield path / "__init__.py"
