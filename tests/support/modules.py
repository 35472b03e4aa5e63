"""Loads test files as modules, so that tests/soak can call their functions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    """The test file of this name anywhere in tests/, except in tests/soak."""
    (file,) = [f for f in TESTS.rglob(f"{name}.py") if f.parent != TESTS / "soak"]
    spec = importlib.util.spec_from_file_location(f"of_soak_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
