"""Find the function that a user names on the command line: `module:function`, `file.py:function`.

Users train their own model and data with `train --model my_file:build --data path/to/data.py:load`.
A module is imported as Python would from the current folder; a file is run with its own folder on
the import path, so that it can import its neighbours.
"""

import ast
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import numba_kernels
from numba_kernels.errors import message_of

PACKAGES = str(Path(__file__).parent), str(Path(numba_kernels.__file__).parent)
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def is_ours(error: BaseException) -> bool:
    """Whether a line of these packages has raised it; also if it was never raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return not frames or frames[-1].filename.startswith(PACKAGES)


def place_of(error: BaseException) -> str:
    """The line of the user's that it comes from, as " (FILE, line 2)"; empty if there is none."""
    found = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if type(error).__module__.startswith("tensorflow."):  # its text says what its graph has called
        found += re.findall(r'File "(.+?)", line (\d+)', message_of(error))
    for file, line in reversed(found):
        if Path(file).is_absolute() and not file.startswith((*PACKAGES, *LIBRARIES)):
            return f" ({file}, line {line})"
    return ""


def shadow(error: BaseException) -> str:
    """What may be behind a failed import: a file that has the name of a module of Python's."""
    if not isinstance(error, ImportError | AttributeError):
        return ""
    named = error.name if isinstance(error, ImportError) else None
    if isinstance(of := getattr(error, "obj", None), ModuleType):  # it lacks an attribute
        named = of.__name__
    passed = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    for place in (Path(one or os.curdir).resolve() for one in sys.path):
        if str(place).startswith(LIBRARIES) or not place.is_dir():
            continue
        for file in sorted(place.glob("*.py")):
            loaded = getattr(sys.modules.get(file.stem), "__file__", None) or ""
            if file.stem not in sys.stdlib_module_names:
                continue
            if os.path.abspath(loaded) == str(file) or str(file) in passed:
                return f"; {file} hides Python's own module {file.stem}: give it another name"
            if file.stem == named:
                return f"; Python's own module {named} hides {file}: give it another name"
    return ""


def is_reference(spec: str) -> bool:
    """Whether `spec` names a user's function rather than a name of this package."""
    return ":" in spec


def find(spec: str, what: str) -> Callable:
    """Find the function that `spec` names; `what` it is for ("data", "model") is in messages.

    Raises:
        ValueError: If there is no such module, file or function. Errors inside the user's file are
            not caught.
    """
    from tutorial_dl.tensorflow_chatter import hide_tensorflow_chatter

    hide_tensorflow_chatter()  # the user's file may be the first to import TensorFlow
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ValueError(f"{what} '{spec}': expected module:function or path/to/file.py:function")
    if where.endswith(".py"):
        path = Path(where).resolve()
        if not path.is_file():
            raise ValueError(f"{what} '{spec}': there is no file {path}")
        module = _file(path)
    else:
        module = _module(where, what)
    function = getattr(module, name, None)
    if not callable(function):
        have = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ValueError(_no_function(spec, what, have))
    return function


def check(spec: str, what: str) -> None:
    """Raise ValueError if the source shows that there is no such function; nothing is run.

    A file that can't be found without an import, or that imports all names of another, is believed.
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise ValueError(f"{what} '{spec}': expected module:function or path/to/file.py:function")
    path = source_of(where)
    if path is None:
        if where.endswith(".py"):
            raise ValueError(f"{what} '{spec}': there is no file {Path(where).resolve()}")
        return
    nodes = list(ast.walk(tree := parsed(path)))
    bound = {
        one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    bound |= {one.name for one in nodes if isinstance(one, DEFINED)}
    bound |= {(one.asname or one.name) for one in nodes if isinstance(one, ast.alias)}
    if not bound & {name, "*"}:
        have = [one.name for one in tree.body if isinstance(one, DEFINED)]
        raise ValueError(_no_function(spec, what, [n for n in have if not n.startswith("_")]))


DEFINED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def source_of(where: str) -> Path | None:
    """The file of a module, or of a path, if it can be told without an import."""
    if where.endswith(".py"):
        return Path(where) if Path(where).is_file() else None
    if "." in where:
        return None  # its parents would be imported
    here = Path(f"{where}.py")
    if here.is_file():
        return here
    spec = importlib.util.find_spec(where)
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file; ValueError if it is not Python."""
    try:
        return ast.parse(path.read_bytes())  # heeds a byte order mark and a coding line
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}") from None


def _no_function(spec: str, what: str, have: list[str]) -> str:
    where, _, name = spec.rpartition(":")
    return f"{what} '{spec}': {where} has no function '{name}'; it has " + (
        ", ".join(sorted(have)) or "no functions at all"
    )


def _module(where: str, what: str) -> ModuleType:
    # The console script, unlike `python -m`, does not search the current folder.
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    own = Path(here, f"{where}.py")
    if where in sys.stdlib_module_names and own.is_file():
        return _file(own)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        # Explain only a missing module itself, not a missing import inside it.
        if error.name is None or not (where == error.name or where.startswith(error.name + ".")):
            raise
        raise ValueError(
            f"{what} '{where}': no such module in {here} or among the installed ones"
        ) from None


@cache  # a file with both the model and the data is run only once
def _file(path: Path) -> ModuleType:
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
