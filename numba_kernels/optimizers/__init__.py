"""Optimizers on flat vectors.

Each optimizer has hyper-parameters, a state and one kernel:

    adam = Adam(learning_rate=0.001)
    state = adam.init(parameters.size)
    adam.update(parameters, gradient, state)      # in place, one pass over memory

One file per rule. base.py has what they share, switch.py chooses among them in compiled code,
serve.py is the pass of a parameter server, clipping.py clips by the global norm.
"""

from functools import cache
from importlib import import_module

import lazy_loader

# name: (file, class, arguments that the name sets)
OPTIMIZERS = {
    "sgd": ("sgd", "SGD", {}),
    "momentum": ("sgd", "SGD", {"momentum": 0.9}),
    "nesterov": ("sgd", "SGD", {"momentum": 0.9, "nesterov": True}),
    "adagrad": ("adagrad", "Adagrad", {}),
    "adadelta": ("adadelta", "Adadelta", {}),
    "rmsprop": ("rmsprop", "RMSprop", {}),
    "adam": ("adam", "Adam", {}),
    "adamw": ("adamw", "AdamW", {}),
    "nadam": ("nadam", "Nadam", {}),
    "lion": ("lion", "Lion", {}),
    "lars": ("lars", "LARS", {}),
    "lamb": ("lamb", "LAMB", {}),
    "muon": ("muon", "Muon", {}),
    "soap": ("soap", "SOAP", {}),
    "adafactor": ("adafactor", "Adafactor", {}),
    "schedule_free_sgd": ("schedule_free", "ScheduleFreeSGD", {}),
    "schedule_free_adamw": ("schedule_free", "ScheduleFreeAdamW", {}),
    "prodigy": ("prodigy", "Prodigy", {}),
}
NAMES = tuple(OPTIMIZERS)

_homes = {kind: file for file, kind, _ in OPTIMIZERS.values()} | {
    "Averaged": "averaged",
    "Optimizer": "base",
    "State": "base",
    "clip_by_norm": "clipping",
}
# Lazily: a process that wants only the names need not wait for Numba.
_attached, __dir__, _ = lazy_loader.attach(
    __name__,
    submodules=[
        *("averaged", "base", "clipping", "matrices", "serve", "switch"),
        *{f for f, _, _ in OPTIMIZERS.values()},
    ],
    submod_attrs={file: [n for n, f in _homes.items() if f == file] for file in _homes.values()},
)
__all__ = ["NAMES", "get", *_homes]


@cache
def passes():
    """The compiled passes (begin, finish) of switch.py, which choose among all rules.

    The base class asks for them here: it is imported by the rules, and these by the switch.
    """
    switch = import_module(".switch", __name__)
    return switch.begin, switch.finish


def __getattr__(name):
    if name in _homes:
        passes()  # every rule needs them
    return _attached(name)


def get(name, learning_rate: float | None = None):
    """Return the optimizer called `name` (one of `NAMES`); an Optimizer is returned as it is.

    "momentum" and "nesterov" are SGD with momentum 0.9. Without `learning_rate` it has its default.

    Example:
        >>> get("momentum", learning_rate=0.1)
        SGD(learning_rate=0.1, momentum=0.9, nesterov=False)
    """
    from .base import Optimizer

    if isinstance(name, Optimizer):
        return name
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}; choose one of {', '.join(NAMES)}")
    _, kind, fixed = OPTIMIZERS[name]
    given = {} if learning_rate is None else {"learning_rate": learning_rate}
    return __getattr__(kind)(**fixed, **given)
