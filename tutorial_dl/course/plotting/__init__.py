"""Every figure that the notebooks and the command line draw: data in, matplotlib Figure out.

Figures of one panel take a `title`, which replaces their own, and `ax` to draw on. There is one
file per subject, and its `__all__` names what this package offers: `plotting.fits` is `fits` of
curves.py. A new file needs no entry here. Nothing, in particular not matplotlib, is imported
before the first figure is asked for.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

# Figures that stand beside what they draw.
ELSEWHERE = {
    "draw_layout": "tutorial_dl.layout.figure",
    "learning_rates": "tutorial_dl.training.schedules",
    "spans": "tutorial_dl.training.timeline_figure",
}


def _files() -> list[str]:
    return [module.name for module in iter_modules(__path__)]


def __getattr__(name: str) -> Any:
    # Underscored names are Python asking about the package itself (__wrapped__, _repr_html_, ...).
    if not name.startswith("_"):
        if name in ELSEWHERE:
            return getattr(import_module(ELSEWHERE[name]), name)
        files = _files()
        if name in files:
            return import_module(f"{__name__}.{name}")
        for file in files:
            module = import_module(f"{__name__}.{file}")
            if name in getattr(module, "__all__", ()):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; see dir({__name__})")


def __dir__() -> list[str]:
    names = {*_files(), *ELSEWHERE}
    for file in _files():
        names.update(getattr(import_module(f"{__name__}.{file}"), "__all__", ()))
    return sorted(names)
