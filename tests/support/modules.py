"""Test files as modules: tests/soak calls what they contain."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    """The test file of this name, wherever in tests/ it is, but not in tests/soak."""
    (file,) = [f for f in TESTS.rglob(f"{name}.py") if f.parent != TESTS / "soak"]
    spec = importlib.util.spec_from_file_location(f"of_soak_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
