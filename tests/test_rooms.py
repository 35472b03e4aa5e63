"""Rooms: imports keep the contract and have no side effects; private attributes stay private.

No file has marks of an unfinished merge, either.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from lines_by_room import ABOVE, BUDGETS, by_budget

ROOT = Path(__file__).parents[1]


def test_imports_point_downwards():
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "0 broken" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("rooms", BUDGETS)
def test_no_room_grows_beyond_its_budget(rooms):
    lines, budget = by_budget()[rooms], BUDGETS[rooms]
    most = ABOVE.get(rooms, 1.1 * budget)
    assert lines <= most, f"{rooms}: {lines:,} lines, at most {most:,.0f}: merge ideas, or delete"
    # Once it has come down, it stays there.
    assert rooms not in ABOVE or lines > 1.1 * budget, f"take {rooms!r} out of ABOVE"


# Private attributes: `x._y` is used in the file that defines `_y`, by `self` and `cls`, and nowhere
# else. Exceptions are names that other packages offer only in this form.
OF_OTHERS = {
    "os, sys": {"_exit", "_current_frames"},
    "named tuples, where these are public": {"_asdict", "_fields", "_replace"},
    "mpi4py": {"_addressof", "_handleof", "_sizeof", "_typedict"},
    "Numba's compile cache": {"_cache", "_rebuild", "_reduce"},
    "IPython": {"_render_traceback_"},
    "ipyparallel": {"_setup_heartmonitor"},
    "Optuna": {"_trial_id"},
    "COCO's problems": {"_best_parameter"},
    "Keras": {
        "_accumulated_gradients", "_compile_config", "_compile_loss", "_compile_metrics",
        "_flat_losses", "_flatten_layers", "_fn", "_inputs_struct", "_iterations",
        "_keras_call_info_injected", "_learning_rate",
        "_loss_tracker", "_nodes_by_depth", "_outputs_struct", "_path", "_resolve_auto_jit_compile",
        "_trainable_variables", "_u_product", "_use_weight_decay", "_user_metrics",
        "_user_weighted_metrics", "_value",
    },
}  # fmt: skip


def foreign(path: Path) -> list[str]:
    """The private attributes of other files' classes that a file uses."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    allowed = set().union(*OF_OTHERS.values())
    allowed |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    allowed |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    used = [n for n in nodes if isinstance(n, ast.Attribute) and n.attr.startswith("_")]
    of_self = [n for n in used if isinstance(n.value, ast.Name) and n.value.id in ("self", "cls")]
    allowed |= {n.attr for n in of_self if isinstance(n.ctx, ast.Store)}
    return [
        f"{path.relative_to(ROOT)}:{n.lineno}: {ast.unparse(n)}"
        for n in used
        if n not in of_self and n.attr not in allowed and not n.attr.endswith("__")
    ]


def test_no_file_uses_private_attributes_of_others():
    for package in ("numba_kernels", "tutorial_dl", "benchmarks", "docs/site", "slides"):
        for path in sorted((ROOT / package).rglob("*.py")):
            found = foreign(path)
            assert not found, "\n".join(found)


IMPORTS = """
import importlib, os, signal, sys, threading, warnings
from pathlib import Path
import numpy, mpi4py.MPI  # may add to sys.meta_path
import scipy.optimize, ipyparallel.engine.app  # add to filters of warnings

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
        without.append(module)  # what it has changed until then counts too
    after = process()
    changes += [f"{module}: {name}" for name in before if before[name] != after[name]]
    before = after
assert len(files) > 250 and not changes, changes
rooms = ("interop.", "horovod.", "replica.keras", "replica.tensorflow", "cli.keras_ranks",
         "model_parallel.keras", "model_parallel.proposing", "model_parallel.reductions",
         "training.prediction", "tuning.regret", "bench.networks", "models.")
assert all(name.startswith(tuple("tutorial_dl." + r for r in rooms)) for name in without), without
assert "numba_kernels.team.failure" in sys.modules and "tutorial_dl.training.trainer" in sys.modules
"""


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("from tutorial_dl.training.prediction import step_seconds", "tutorial_dl.simulate.steps"),
        ("from tutorial_dl.course.foundations import Cut", "simulate.Cut"),
        ("from tutorial_dl.course.foundations import Job", "simulate.Job"),
        ("from tutorial_dl.course.foundations import Machine", "simulate.gpus"),
        ("from tutorial_dl.tuning.regret import search", "tutorial_dl.tuning.problems"),
        ("from tutorial_dl.model_parallel import proposing", "tutorial_dl.simulate.cuts"),
        ("import tutorial_dl.model_parallel.proposing", "tutorial_dl.simulate.cuts"),
    ],
)
def test_what_is_gone_says_what_to_write_now(line, instead):
    with pytest.raises(ImportError, match=f"is gone: write .*{instead}"):
        exec(line)


def test_no_import_changes_the_process():
    """Importing any module leaves hooks, streams, signals, ... as they were.

    TensorFlow, which changes the process itself, is not there; modules that need it fail halfway.
    """
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


WITHOUT_MPI = """
import sys
sys.modules["mpi4py.MPI"] = None  # now importing it fails, and the traceback tells where
from tutorial_dl.cli import commands, train
"""


def test_command_lines_load_mpi_late():
    """Ranks are forked from a process that has imported these two, so they must not load MPI."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MPI], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_no_file_has_marks_of_an_unfinished_merge():
    marks = tuple(sign * 7 + " " for sign in "<>")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for kind in ("py", "md", "ipynb", "toml", "css", "json", "txt", "yml")
        for path in ROOT.rglob(f"*.{kind}")
        if not any(p.startswith(".") or p == "build" for p in path.relative_to(ROOT).parts)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.startswith(marks)
    ]
    assert found == []
