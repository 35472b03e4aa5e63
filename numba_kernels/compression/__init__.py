"""Gradient compression: an allreduce that sends fewer bytes and returns an approximation.

    method = compression.get("top_k", ratio=0.01)
    state = method.init(gradient.size)                       # the state of this rank
    method.allreduce(team, gradient, state, op="mean")       # in place; the same on all ranks

One file per method (fp16 and bf16: cast.py; int8, int4 and sign: quantised.py), all with this
signature (base.py). For a gradient of n float32 numbers and many ranks, each rank sends about
(`method.bytes` gives the exact number):

    plain allreduce     8 n bytes
    fp16, bf16          4 n                 every number is rounded twice
    int8, int4, sign    2 n, n, n / 4       a scale for each block; the error is sent later
    top_k               8 ratio n (p - 1)   the largest numbers now, the others later
    powersgd            8 r (rows + cols)   per matrix: two thin factors of it
    adasum              8 n                 no fewer bytes: combines gradients so that more ranks
                                            can join without a smaller learning rate
"""

import lazy_loader

# name: (file, class, settings that the name fixes)
METHODS = {
    "fp16": ("cast", "Cast", {"half": "fp16"}),
    "bf16": ("cast", "Cast", {"half": "bf16"}),
    "int8": ("quantised", "Quantised", {"bits": 8}),
    "int4": ("quantised", "Quantised", {"bits": 4}),
    "sign": ("quantised", "Quantised", {"bits": 1}),
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
    """Return the method called `name` (one of `NAMES`); a Method is returned as it is.

    Settings are fields of the method's class, such as `ratio` of "top_k". A wrong name is a
    ValueError, a wrong setting a TypeError.

    Example:
        >>> get("top_k", ratio=0.05)
        TopK(ratio=0.05, feedback=True)
    """
    from .base import Method

    if isinstance(name, Method):
        if settings:
            raise TypeError(f"{name} has its settings already, but got {', '.join(settings)} too")
        return name
    if name not in METHODS:
        raise ValueError(f"unknown compression {name!r}; choose one of {', '.join(NAMES)}")
    _, kind, fixed = METHODS[name]
    method = __getattr__(kind)
    possible = [f for f in method.__dataclass_fields__ if f not in fixed]
    if wrong := [setting for setting in settings if setting not in possible]:
        has = f"it has {', '.join(possible)}" if possible else "it has none"
        raise TypeError(f"{name} has no setting {wrong[0]!r}; {has}")
    return method(**fixed, **settings)
