"""Optimizers on flat vectors: hyper-parameters, state, and one kernel each.

adam = Adam(learning_rate=0.001)
state = adam.init(parameters.size)
adam.update(parameters, gradient, state)      # in place, one pass over memory
"""

from __future__ import annotations

from importlib import import_module

from .names import NAMES, RULES

_HOMES = {kind: file for file, kind, _ in RULES.values()} | {
    "Optimizer": "base",
    "State": "base",
    "clip_by_norm": "clipping",
}
__all__ = ["NAMES", "get", *_HOMES]


def __getattr__(name):
    # Lazily: whoever wants the names only need not wait for Numba.
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def get(name, learning_rate: float | None = None):
    """The optimizer called `name`, with its own default learning rate unless one is given.

    "momentum" and "nesterov" are SGD with momentum 0.9. An Optimizer is passed through.
    Raises ValueError for a name that is not known.
    """
    from .base import Optimizer

    if isinstance(name, Optimizer):
        return name
    if name not in RULES:
        raise ValueError(f"unknown optimizer {name!r}; one of {', '.join(NAMES)}")
    file, kind, fixed = RULES[name]
    given = {} if learning_rate is None else {"learning_rate": learning_rate}
    return getattr(import_module(f".{file}", __name__), kind)(**fixed, **given)
