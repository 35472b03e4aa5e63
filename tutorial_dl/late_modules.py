"""`import tensorflow` in half the time, by what it does not need.

    with light():
        import tensorflow

Parts of Keras import scikit-learn, scipy.stats and matplotlib where these are installed, and Keras
imports all its parts. Within `light`, stand-ins take the place of those parts, which import them
when an attribute is first asked for. They are in `sys.modules` only meanwhile, so that
`from keras.wrappers import ...` later finds the part itself. A version of Keras that has no such
part never asks for one, and one that needs a part for its own import gets it.

Python looks for cycles of garbage while it imports, where it finds none: a third of the time.
"""

import gc
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

LATER = ("keras.wrappers", "keras.visualization", "keras.src.visualization")


class Later(types.ModuleType):
    """Stands for a module of the same name, which is imported for the first attribute."""

    def __getattr__(self, name: str):
        if name.startswith("__") and name != "__path__":  # __path__: a module below is imported
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)

    def __dir__(self) -> list[str]:
        return dir(importlib.import_module(self.__name__))


@contextmanager
def light() -> Iterator[None]:
    """See above; does nothing if Keras is imported already."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "version"):  # its last line, so it is complete
        yield
        return
    installed = keras is not None or importlib.util.find_spec("keras") is not None
    made = {name: Later(name) for name in LATER if installed and name not in sys.modules}
    sys.modules.update(made)
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        for name, module in made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        if collects:
            if gc.get_freeze_count() == 0:
                # Put the million new objects into the oldest generation without looking at them.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
