"""The import contract of pyproject.toml holds, and no import changes the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_imports_point_downwards():
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "0 broken" in done.stdout, done.stdout + done.stderr


IMPORTS = """
import importlib, os, signal, sys, threading, warnings
from pathlib import Path
import numpy, mpi4py.MPI  # may add to sys.meta_path

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "keras", "torch"):
            raise ModuleNotFoundError(name, name=name)

def process():
    handlers = {one: signal.getsignal(one) for one in signal.valid_signals()}
    return {
        "excepthook": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "streams": (sys.stdin, sys.stdout, sys.stderr), "numpy's errors": numpy.geterr(),
        "signals": handlers, "filters": list(warnings.filters), "warnings": warnings.showwarning,
        "environment": dict(os.environ), "finders": list(sys.meta_path),
    }

sys.meta_path.insert(0, Without())
before, without, changes = process(), [], []
files = [p for room in ("numba_kernels", "tutorial_dl") for p in Path(room).rglob("*.py")]
for file in sorted(p for p in files if p.name != "__main__.py"):
    module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        without.append(module)
        os.environ.clear(), os.environ.update(before["environment"])
        sys.meta_path[:] = before["finders"]
    after = process()
    changes += [f"{module}: {name}" for name in before if before[name] != after[name]]
    before = after
assert len(files) > 300 and not changes, changes
rooms = ("interop.", "horovod.", "replica.keras", "bench.networks", "bench.torch_ddp")
assert all(name.startswith(tuple("tutorial_dl." + r for r in rooms)) for name in without), without
assert "numba_kernels.team.failure" in sys.modules and "tutorial_dl.training.trainer" in sys.modules
"""


def test_no_import_changes_the_process():
    """Every module that needs no TensorFlow, in a fresh process: hooks, streams, signals, ..."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
