"""Build a model by name, or from a user's function.

    replica = models.build("cnn", dataset)                  # or "my_file:build"
    model = models.cnn(dataset)                             # the compiled keras.Model itself

`f(dataset, seed=0)` makes a model that fits the dataset: `curve`, `softmax` and `dense` are
numpy replicas, `mlp`, `cnn` and `lstm` compiled Keras models.
"""

import random
import sys
from typing import Any

import lazy_loader
import numpy as np

from tutorial_dl import replica, user_function
from tutorial_dl.data import Dataset

_HOMES = {"numpy_models": ["curve", "softmax", "dense"], "keras_models": ["mlp", "cnn", "lstm"]}
NAMES = (*_HOMES["numpy_models"], *_HOMES["keras_models"])

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_HOMES)
__all__ += ["NAMES", "build"]


def check(spec: str) -> None:
    """Raise ValueError if `spec` can't name a model; imports nothing."""
    if spec not in NAMES and not user_function.is_reference(spec):
        raise ValueError(
            f"model '{spec}': expected {', '.join(NAMES)}, module:function or "
            "path/to/file.py:function"
        )


def build(spec: Any, dataset: Dataset, seed: int = 0) -> replica.Replica:
    """Build the Replica of the model that `spec` names, to fit the dataset.

    Args:
        spec: One of `NAMES`; or "module:function" or "path/to/file.py:function", a function that is
            called without arguments and returns a compiled keras.Model or a Replica; or a model
            itself.
        seed: Seed of the initial weights; for a user's function, seed of Python's, numpy's and
            Keras's generators.

    Raises:
        ValueError, TypeError: If there is no such model, or it does not fit the dataset, or cannot
            be trained (because it is not compiled, for example).
    """
    if not isinstance(spec, str):
        return replica.of(_built(spec, dataset))
    check(spec)
    if spec in NAMES:
        return replica.of(__getattr__(spec)(dataset, seed=seed))
    function = user_function.find(spec, "model")
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(seed)
    else:
        random.seed(seed)
        np.random.seed(seed)
    made = _built(function(), dataset)
    try:
        return replica.of(made)
    except (TypeError, ValueError) as error:
        raise type(error)(f"model '{spec}': {error}") from None


def _built(model: Any, dataset: Dataset) -> Any:
    """Return the model; a Keras model without weights is first built by a call on one sample."""
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Model) and not model.built:
        model(dataset.train.take(slice(0, 1))[0])
    return model
