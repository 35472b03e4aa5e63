"""PyTorch as a peer, in this environment or in that of the Python named by TUTORIAL_DL_TORCH.

Its programs (torch_ddp.py, torch_pipeline.py) take their turns between two starts of our ranks.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from numba_kernels import launch

TORCH = "TUTORIAL_DL_TORCH"
DDP, PIPELINE = "torch DDP over gloo", "torch pipelining over gloo"


def python() -> str | None:
    """The path of a Python that has torch, or None; raises ValueError if TORCH names no program."""
    named = os.environ.get(TORCH)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise ValueError(f"{TORCH} must be the path of a Python that has torch, got {named}")
        return named
    return sys.executable if find_spec("torch") else None


def starts(
    peer: str,
    count: int,
    ours: Callable[[], list[dict]],
    theirs: Callable[[str], dict],
    against: Callable[[list[dict], dict], list[dict]],
) -> list[list[dict]]:
    """The rows of so many starts: `ours()`, and `against(ours, theirs(python))` if there is torch.

    If PyTorch fails (its processes have been seen to abort), a note says so, and there are only our
    own rows.
    """  # fmt: skip
    torch, found = python(), []
    if torch is None:
        print(f"note: no torch found; set {TORCH}=/path/to/python for {peer}", file=sys.stderr)
    for _ in range(count):
        rows = ours()
        if torch:
            try:
                rows = rows + against(rows, theirs(torch))
            except ValueError as error:
                print(f"note: without rows of {peer}: {error}", file=sys.stderr)
                torch = None
        found.append(rows)
    if torch is None:  # perhaps it has failed since the first start
        return [[one for one in start if one["peer"] != peer] for start in found]
    return found


def run(torch: str, name: str, ranks: int, seconds: float, *more: str) -> dict:
    """Run a program of this folder with a Python that has torch; returns what it writes."""
    program = Path(__file__).with_name(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "times.json")
        words = [torch, str(program), str(ranks), str(seconds), str(file), *more]
        # The guard leaves none of its processes behind.
        guarded, limit = launch.guarded(words, os.getpid()), 120 + 5 * seconds
        with subprocess.Popen(guarded, stdout=-1, stderr=-1, text=True) as process:
            try:
                _, said = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                process.terminate()  # the guard then ends all that is below it
                process.communicate()
                raise ValueError(f"{torch} {program.name}: not done in {limit:g} s") from None
        if process.returncode:
            why = said.strip().splitlines()[-1:] or [f"status {process.returncode}"]
            raise ValueError(f"{torch} {program.name} failed: {why[0]}")
        return json.loads(file.read_text())
