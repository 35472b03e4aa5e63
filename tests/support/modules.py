"""Loads test files as modules, for ranks and for tests/soak."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]
OF_THE_TEST = "of_the_test"  # the name of a test file's module in a rank


def load(name: str) -> ModuleType:
    """The test file of this name, or folder/name, anywhere in tests/ except in tests/soak."""
    (file,) = [f for f in TESTS.rglob(f"{name}.py") if f.parent != TESTS / "soak"]
    return load_file(file, f"of_soak_{file.stem}")


def load_file(file: Path | str, name: str = OF_THE_TEST) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
