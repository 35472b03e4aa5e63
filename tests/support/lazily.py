"""Modules that are imported when a test first uses something of them.

Every worker of pytest-xdist reads all files of tests. Importing TensorFlow takes 5 to 10 s of a
processor and 0.5 GB: so only the worker that runs the tests of Keras does it.
"""

import importlib
from functools import reduce


class Lazily:
    """Stands for a module, or for what another one calls it.

    layers = Lazily("tutorial_dl.replica.keras_tensorflow", "keras.layers")
    """

    def __init__(self, module: str, name: str):
        self.__path = module, name.split(".")

    def __getattr__(self, what: str):
        if what.startswith("_"):  # pytest asks every global of a test's file whether it wraps one
            raise AttributeError(what)
        module, names = self.__path
        return getattr(reduce(getattr, names, importlib.import_module(module)), what)
