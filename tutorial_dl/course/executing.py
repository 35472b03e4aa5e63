"""Runs notebooks from top to bottom and keeps them with their outputs, for slides and pages."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from ..figure_style import KEEP

SECONDS = 900.0  # per cell
SUM = "source"  # in the metadata of a notebook that was run


class CellFailed(RuntimeError):
    """A cell of a notebook raised an error, or took too long."""


def digest(notebook: Path) -> str:
    """A checksum of the notebook and of the code of both packages: what its outputs depend on."""
    text = notebook.read_text(encoding="utf-8")
    if notebook.suffix == ".ipynb":  # without stored outputs
        cells = json.loads(text)["cells"]
        parts = [[cell["metadata"].get("tags"), "".join(cell["source"])] for cell in cells]
        text = json.dumps(parts)
    whole = hashlib.sha256(text.encode())
    root = Path(__file__).parents[2]
    for package in ("numba_kernels", "tutorial_dl"):
        for file in sorted((root / package).rglob("*.py")):
            whole.update(file.read_bytes())
    return whole.hexdigest()


def is_current(notebook: Path, result: Path) -> bool:
    """Whether `result` was made by `execute` from the notebook and the packages as they are now."""
    import nbformat

    if not result.exists():
        return False
    about = nbformat.read(result, as_version=4).metadata.get("tutorial_dl", {})
    return about.get(SUM) == digest(notebook)


def execute(notebook: Path, result: Path, seconds: float = SECONDS) -> None:
    """Run all cells of a notebook in a new kernel, and write it with its outputs to `result`.

    Its working folder is that of `result`, which is written only if all cells succeed. Figures
    are kept as the notebook shows them, and in the form that slides need (`figure_style.KEEP`).

    Args:
        notebook: The file.
        result: The file to write; its folder must be there.
        seconds: The time that a cell may take.

    Raises:
        CellFailed: names the cell and its error.
    """
    import nbformat
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    source = digest(notebook)
    whole = nbformat.read(notebook, as_version=4)
    where = {"metadata": {"path": str(result.parent)}}
    now = ["before the first cell"]
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        # Sockets in a folder of this user: nobody else on this machine can reach the kernel.
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/socket")
        client = NotebookClient(whole, km=kernel, timeout=seconds, resources=where)
        client.owns_km = True  # so it ends the kernel, whatever happens
        client.on_cell_start = lambda cell, cell_index: now.__setitem__(0, cell["id"])
        try:
            client.execute(env=os.environ | {KEEP: "1"})
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            said = f"not done in {seconds:g} s"
            if isinstance(error, CellExecutionError):
                said = f"{error.ename}: {error.evalue}".splitlines()[0]
            elif isinstance(error, DeadKernelError):
                said = "its kernel has ended"
            raise CellFailed(f"{notebook.name}, cell {now[0]}: {said}") from error
    whole.metadata["tutorial_dl"] = {SUM: source}
    part = result.with_suffix(".part")
    nbformat.write(whole, part)
    part.replace(result)
