"""The training loop: batches in, strategy step, validation, history."""

from importlib import import_module

# Loaded at first use: a Trainer brings MPI with it, which whoever only starts ranks, or predicts
# what they will do, must not initialise.
_LAZY = {"History": "history", "Trainer": "trainer", "TrainingError": "errors"}

_MODULES = ("callbacks", "schedules", "timeline")
__all__ = [*_LAZY, *_MODULES]


def __getattr__(name):
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
