"""Distributed deep learning over MPI, from curve fitting to parallel training.

In a notebook:

    from tutorial_dl import Team, Trainer, strategies, models, data

On the command line: `python -m tutorial_dl --help`. Modules are imported when they are first used,
so libraries that are not needed cost no start-up time.
"""

from importlib import import_module

__version__ = "0.1.0"

_MODULES = (
    "cluster", "data", "exercises", "foundations", "models", "plotting", "replica", "strategies",
    "training",
)  # fmt: skip
_NAMES = {
    "Layout": "tutorial_dl.layout",
    "Team": "numba_kernels.team",
    "Trainer": "tutorial_dl.training",
    "callbacks": "tutorial_dl.training",
    "launch": "numba_kernels",
    "optimizers": "numba_kernels",
    "schedules": "tutorial_dl.training",
    "timeline": "tutorial_dl.training",
}

__all__ = [*_MODULES, *_NAMES]


def __getattr__(name):
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
