"""What the ranks of a test import as `pytest`, which would take them a tenth of a second each.

Test files use `pytest.mark`, `pytest.fixture` and `pytest.param` when they are imported. A rank
only runs one function of the file, so there they do nothing. Whatever else a test uses is pytest's
own, and is imported then.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType


class Light(ModuleType):
    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get("pytest") is self:
            del sys.modules["pytest"]
        return getattr(importlib.import_module("pytest"), name)


class _Marks:
    def __getattr__(self, name: str):
        return _decorator


def _decorator(*arguments, **_):
    """`@mark`, or `@mark(...)`: the function as it is."""
    if len(arguments) == 1 and callable(arguments[0]):
        return arguments[0]
    return lambda function: function


def instead_of_pytest() -> None:
    """Let this process import this as `pytest`."""
    light = sys.modules["pytest"] = Light("pytest")
    light.mark, light.fixture, light.param = _Marks(), _decorator, lambda *values, **_: values
