"""Progress bars of `tqdm.auto` on engines: text, in the rank's output.

tqdm takes an engine for a notebook, and makes a widget or warns that there are none. A widget of an
engine does not reach the notebook's page; a bar of text does, and is overwritten in place.
"""

import importlib.abc
import importlib.util
import sys
from types import ModuleType

NAME = "tqdm.autonotebook"  # the module in which tqdm.auto looks for the right kind of bar


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `NAME` before Python's own finders do."""

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == NAME else None

    def exec_module(self, module: ModuleType) -> None:
        from tqdm import std

        class tqdm(std.tqdm):
            def __init__(self, *args, **options):
                if len(args) < 5:  # the fifth is `file`
                    options.setdefault("file", sys.stdout)
                super().__init__(*args, **options)

        module.tqdm = tqdm
        module.trange = lambda *args, **options: tqdm(range(*args), **options)
        module.__all__ = ["tqdm", "trange"]


def text_bars() -> None:
    """Call this on an engine; does nothing if tqdm.auto has been imported."""
    if NAME not in sys.modules and not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
