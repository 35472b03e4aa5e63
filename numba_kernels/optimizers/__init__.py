"""Optimizers on flat vectors.

Each optimizer has hyper-parameters, a state and one kernel:

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
    # Lazy, so that reading the names does not import Numba.
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def get(name, learning_rate: float | None = None):
    """Return the optimizer called `name`.

    Args:
        name: one of `NAMES`; "momentum" and "nesterov" are SGD with momentum 0.9. An Optimizer is
            returned as it is.
        learning_rate: eta; None means the optimizer's default.

    Raises:
        ValueError: `name` is unknown.

    Example:
        >>> get("momentum", learning_rate=0.1)
        SGD(learning_rate=0.1, momentum=0.9, nesterov=False)
    """
    from .base import Optimizer

    if isinstance(name, Optimizer):
        return name
    if name not in RULES:
        raise ValueError(f"unknown optimizer {name!r}; choose one of {', '.join(NAMES)}")
    file, kind, fixed = RULES[name]
    given = {} if learning_rate is None else {"learning_rate": learning_rate}
    return getattr(import_module(f".{file}", __name__), kind)(**fixed, **given)
