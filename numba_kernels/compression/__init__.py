"""Compression: an allreduce of gradients that sends less, and what that costs the gradient.

    method = compression.get("top_k", ratio=0.01)
    state = method.init(gradient.size)                       # what this rank remembers
    method.allreduce(team, gradient, state, op="mean")       # in place; the same on all ranks

One file a method, all with this one signature. Of n float32 numbers a rank sends, in an allreduce
of its own kind among many ranks (`method.bytes` says exactly):

    plain allreduce     8 n bytes
    fp16, bf16          4 n                 every number rounded twice
    top_k               8 ratio n (p - 1)   the largest ones now, the others later
    powersgd            8 r (rows + cols)   for each matrix: two thin factors of it
    adasum              8 n                 sends no less: adds gradients so that more ranks can
                                            join without a smaller learning rate
"""

from __future__ import annotations

import lazy_loader

# name: (file, class, what the name fixes)
METHODS = {
    "fp16": ("cast", "Cast", {"half": "fp16"}),
    "bf16": ("cast", "Cast", {"half": "bf16"}),
    "top_k": ("top_k", "TopK", {}),
    "powersgd": ("powersgd", "PowerSGD", {}),
    "adasum": ("adasum", "Adasum", {}),
}
NAMES = tuple(METHODS)

# Lazily: a process that wants only the names need not wait for Numba.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={file: [kind] for file, kind, _ in METHODS.values()}
    | {"base": ["Method", "State"]},
)
__all__ += ["NAMES", "get"]


def get(name, **settings):
    """The method called `name` with these settings; a Method is passed through.

    Raises ValueError for a name that is not known, TypeError for a setting that it does not have.
    """
    from .base import Method

    if isinstance(name, Method):
        if settings:
            raise TypeError(f"{name} has its settings already; {', '.join(settings)} came with it")
        return name
    if name not in METHODS:
        raise ValueError(f"unknown compression {name!r}; one of {', '.join(NAMES)}")
    _, kind, fixed = METHODS[name]
    method = __getattr__(kind)
    possible = [f for f in method.__dataclass_fields__ if f not in fixed]
    if wrong := [setting for setting in settings if setting not in possible]:
        has = f"it has {', '.join(possible)}" if possible else "it has none"
        raise TypeError(f"{name} has no setting {wrong[0]!r}; {has}")
    return method(**fixed, **settings)
