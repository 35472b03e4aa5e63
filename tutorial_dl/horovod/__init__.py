"""Horovod's interface on top of Team, for Keras 3 with TensorFlow.

    import tutorial_dl.horovod.tensorflow.keras as hvd      # was: horovod.tensorflow.keras
    import tutorial_dl.horovod.keras as hvd                 # was: horovod.keras
    import tutorial_dl.horovod.tensorflow as hvd            # was: horovod.tensorflow

    mpiexec -n 4 python train.py                            # was: horovodrun -np 4 python train.py
    python -m tutorial_dl.horovod -np 4 python train.py     # or this

`tutorial_dl.horovod` itself has everything in `tutorial_dl.horovod.tensorflow`, and `run`.
docs/horovod.md explains how to port a script and what differs.
"""

from importlib import import_module

__all__ = ["run"]


def __getattr__(name):
    # A process that only starts ranks must load neither MPI nor TensorFlow. Lazy-loader can't
    # attach these names: `run` is in another package, and the rest is all that `tensorflow` has.
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "run":
        return import_module("tutorial_dl.interop.horovod.launching").run
    if name in ("callbacks", "elastic"):
        return import_module(f"tutorial_dl.interop.horovod.{name}")
    if name == "keras":
        return import_module(".keras", __name__)
    try:
        return getattr(import_module(".tensorflow", __name__), name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__():
    return sorted([*globals(), "run", *import_module(".tensorflow", __name__).__all__])
