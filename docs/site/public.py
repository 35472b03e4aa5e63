"""The public names of both packages: what the `__all__` of a package offers, and the packages."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOTS = ("numba_kernels", "tutorial_dl")
FOLDERS = {"module": "modules", "class": "classes", "function": "functions", "data": "values"}


@dataclass
class Name:
    """A public name, or several of the same object.

    Attributes:
        path: The name by which pages call it, such as "numba_kernels.optimizers.Adam". A module
            has its own name.
        value: The object.
        kind: "module", "class", "function" or "data".
        parent: The package that offers it; "" for a package.
        others: Further public names of the same object.
    """

    path: str
    value: Any
    kind: str
    parent: str
    others: list[str] = field(default_factory=list)

    @property
    def short(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def page(self) -> str:
        """The page's path below `api/`. `Team` and `team` differ also where case does not count."""
        return f"{FOLDERS[self.kind]}/{self.path}"

    @property
    def paths(self) -> list[str]:
        return [self.path, *self.others]


def packages() -> list[str]:
    """All packages that have an `__all__`, in order."""
    found = []
    for root in ROOTS:
        (folder,) = map(Path, find_spec(root).submodule_search_locations)
        for file in sorted(folder.rglob("__init__.py")):
            found.append(".".join((root, *file.parent.relative_to(folder).parts)))
    return [name for name in found if hasattr(import_module(name), "__all__")]


def kind_of(value: Any) -> str:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "class"
    return "function" if callable(value) and not hasattr(value, "__origin__") else "data"


def names() -> list[Name]:
    """All public names, by path. It imports everything, TensorFlow included."""
    found: dict[Any, Name] = {}
    modules = packages()
    for package in modules:
        found[package] = Name(package, import_module(package), "module", "")
    for package in modules:
        module = import_module(package)
        for short in module.__all__:
            path, value = f"{package}.{short}", getattr(module, short)
            kind = kind_of(value)
            if kind == "module":
                one = found.setdefault(value.__name__, Name(value.__name__, value, kind, package))
                if path != one.path:
                    one.others.append(path)
                continue
            plain = isinstance(value, str | int | float | tuple | list | dict)
            key = (short, repr(value)) if plain else id(value)
            one = found.setdefault(key, Name(path, value, kind, package))
            if path != one.path:
                one.others.append(path)
                if _rank(path, value) < _rank(one.path, value):
                    one.others.remove(path)
                    one.others.append(one.path)
                    one.path, one.parent = path, package
    return sorted(found.values(), key=lambda one: one.path)


def _rank(path: str, value: Any) -> tuple[bool, int]:
    """Which of several names to prefer: that of the object's own package, then the shortest."""
    root = (getattr(value, "__module__", None) or "").partition(".")[0]
    return path.partition(".")[0] != root, path.count(".")


def members(value: Any) -> list[tuple[str, Any]]:
    """What a page shows below a module or a class: its own public parts that have a docstring."""
    if isinstance(value, ModuleType):
        here = [
            (name, part)
            for name, part in vars(value).items()
            if kind_of(part) in ("class", "function")
            and getattr(part, "__module__", None) == value.__name__
        ]
    else:
        ours = [one for one in value.__mro__ if one.__module__.partition(".")[0] in ROOTS]
        merged: dict[str, Any] = {}
        for one in reversed(ours):
            merged |= vars(one)
        here = [
            (name, part)
            for name, part in merged.items()
            if isinstance(part, property | classmethod | staticmethod) or inspect.isfunction(part)
        ]
    return [
        (name, part)
        for name, part in here
        if not name.startswith("_") and (inspect.getdoc(part) or inspect.isclass(part))
    ]
