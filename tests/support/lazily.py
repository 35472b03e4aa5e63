"""Modules that are imported when a test first uses one of their names.

Every worker of pytest-xdist reads all test files. Importing TensorFlow takes 5 to 10 s of
processor time and 0.5 GB, so only the worker that runs the tests of Keras does it.
"""

import importlib
from functools import reduce

LOADED: list[str] = []  # test files that have loaded TensorFlow while they were collected


class Lazily:
    """Stands for a module, or for an attribute of a module.

    layers = Lazily("tutorial_dl.replica.keras.replica", "keras.layers")
    """

    def __init__(self, module: str, name: str):
        self.__path = module, name.split(".")

    def __getattr__(self, what: str):
        if what.startswith("_"):  # pytest looks up __wrapped__ in every global of a test file
            raise AttributeError(what)
        module, names = self.__path
        return getattr(reduce(getattr, names, importlib.import_module(module)), what)
