"""Finds the function a user names on the command line: `module:function` or `file.py:function`.

`train --model my_file:build --data path/to/my_data.py:load` is how people bring their own model and
data. A module is imported as Python itself would from the current folder; a file is run from where
it lies, with its own folder on the import path so that it finds its neighbours.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType


def is_reference(spec: str) -> bool:
    """Whether `spec` names a user's function rather than one of this package's own names."""
    return ":" in spec


def find(spec: str, what: str) -> Callable:
    """The function that `spec` names.

    Args:
        spec: "module:function", "package.module:function" or "path/to/file.py:function".
        what: What it is for, in the error message ("data", "model").

    Raises:
        ValueError: There is no such module, file or function. Errors inside the user's file are the
            user's to see: they pass through as they are.
    """
    from tutorial_dl.replica.quiet import hide_tensorflow_chatter

    hide_tensorflow_chatter()  # their file may be the first to import it
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
        have = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise ValueError(
            f"{what} '{spec}': {where} has no function '{name}'; it has "
            + (", ".join(have) or "no functions at all")
        )
    return function


def _module(where: str, what: str) -> ModuleType:
    # The console script, unlike `python -m`, does not look into the current folder.
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        # Only "it isn't there" is ours to explain; a missing import inside it is not.
        if error.name is None or not (where == error.name or where.startswith(error.name + ".")):
            raise
        raise ValueError(
            f"{what} '{where}': no such module in {here} or among the installed ones"
        ) from None


@cache  # one file may hold both the model and the data: it is run once
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
