"""Optimizers on flat vectors: hyper-parameters, state, and one kernel each.

adam = Adam(learning_rate=0.001)
state = adam.init(parameters.size)
adam.update(parameters, gradient, state)      # in place, one pass over memory
"""

from __future__ import annotations

from .adam import Adam
from .base import Optimizer, State
from .sgd import SGD

__all__ = ["SGD", "Adam", "Optimizer", "State", "get"]

NAMES = {
    "sgd": SGD,
    "momentum": lambda **given: SGD(momentum=0.9, **given),
    "nesterov": lambda **given: SGD(momentum=0.9, nesterov=True, **given),
    "adam": Adam,
}


def get(name: str | Optimizer, learning_rate: float | None = None) -> Optimizer:
    """The optimizer called `name`, with its own default learning rate unless one is given.

    "momentum" and "nesterov" are SGD with momentum 0.9. An Optimizer is passed through.
    Raises ValueError for a name that is not known.
    """
    if isinstance(name, Optimizer):
        return name
    if name not in NAMES:
        raise ValueError(f"unknown optimizer {name!r}; one of {', '.join(NAMES)}")
    return NAMES[name](**({} if learning_rate is None else {"learning_rate": learning_rate}))
