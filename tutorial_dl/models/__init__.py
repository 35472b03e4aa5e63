"""Build a model by name, or from a user's function.

    replica = models.build("cnn", dataset)                  # or "my_file:build"
    model = models.cnn(dataset)                             # the compiled keras.Model itself

`f(dataset, seed=0)` makes a model that fits the dataset: `curve`, `softmax`, `dense` and
`transformer` are numpy replicas, built in milliseconds, `mlp`, `cnn`, `lstm` and `gpt` compiled
Keras models. `GANS` make a Game of two players (replica/gan.py): `one_dimensional_gan` in numpy,
`digits_gan`, `digits_conv_gan` and `shower_gan` with Keras.
"""

import inspect
import random
import sys
from collections.abc import Mapping
from math import prod
from typing import Any

import lazy_loader
import numpy as np

from numba_kernels.errors import message_of
from tutorial_dl import replica, user_function
from tutorial_dl.data import Dataset

KERAS_GANS = ("digits-gan", "digits-conv-gan", "shower-gan")
GANS = ("one-dimensional-gan", *KERAS_GANS)
NETWORKS = ["mlp", "cnn", "lstm", "gpt"]
KERAS = (*NETWORKS, *KERAS_GANS)
SPARSE = 10_000  # from so many labels on, most of them must occur
NAMES = ("curve", "softmax", "dense", "transformer", *NETWORKS, *GANS)

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "keras_models": NETWORKS,
        "digits_gans": ["digits_conv_gan", "digits_gan"],
        "shower_gans": ["shower_gan"],
    },
)
__all__ += [
    "GANS", "NAMES", "build", "curve", "dense", "one_dimensional_gan", "softmax", "transformer",
]  # fmt: skip


def check(spec: str) -> None:
    """Raise ValueError if `spec` can't name a model; imports nothing."""
    if spec in NAMES or _two(spec):
        return
    if not user_function.is_reference(spec):
        raise ValueError(
            f"model '{spec}': expected {', '.join(NAMES)}, module:function or "
            "path/to/file.py:function"
        )


def _two(spec: str) -> list[str]:
    """The generator and the discriminator of "my:generator,my:discriminator"; else []."""
    parts = spec.split(",")
    return parts if len(parts) == 2 and all(map(user_function.is_reference, parts)) else []


def build(
    spec: Any, dataset: Dataset, seed: int = 0, arguments: Mapping[str, Any] | None = None
) -> Any:
    """Build the Replica, or of a GAN the Game, that `spec` names, to fit the dataset.

    Args:
        spec: One of `NAMES`; or "module:function" or "path/to/file.py:function", a function that is
            called with `arguments` and returns a compiled keras.Model, a Replica or a Game; two
            such functions, joined by a comma, that return the generator and the discriminator of a
            GAN as keras.Models; or a model itself. A keras.Model with the attributes `generator`
            and `discriminator`, both keras.Models, is a GAN.
        seed: Seed of the initial weights; for a user's function, seed of Python's, numpy's and
            Keras's generators.
        arguments: Keyword arguments of a user's function.

    Raises:
        ValueError, TypeError: If there is no such model, or it does not fit the dataset, or cannot
            be trained (because it is not compiled, for example).
    """
    if not isinstance(spec, str):
        return replica.of(_built(spec, dataset))
    check(spec)
    if spec in NAMES:
        made = getattr(sys.modules[__name__], spec.replace("-", "_"))(dataset, seed=seed)
        return made if spec in GANS else replica.of(made)
    functions = [user_function.find(one, "model") for one in _two(spec) or [spec]]
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(seed)
    else:
        random.seed(seed)
        np.random.seed(seed)
    for function in functions if arguments else ():
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            raise ValueError(f"model '{spec}': {error}") from None
    made = [function(**arguments or {}) for function in functions]
    try:
        if (game := _game_of(*made)) is not None:
            return game
        return replica.of(_built(made[0], dataset))
    except (TypeError, ValueError) as error:
        raise type(error)(f"model '{spec}': {message_of(error)}") from None


def _built(model: Any, dataset: Dataset) -> Any:
    """Return the model; a Keras model without weights is first built by a call on one sample."""
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.Model) and not model.built:
        model(dataset.train.take(slice(0, 1))[0])
    return model


def _game_of(model: Any, discriminator: Any = None) -> Any:
    """The Game that a user's functions have made; None if it is another model."""
    from tutorial_dl.replica.gan import Game

    if isinstance(model, Game):
        return model
    if discriminator is None:
        keras = sys.modules.get("keras")
        parts = [getattr(model, name, None) for name in ("generator", "discriminator")]
        if keras is None or not all(isinstance(part, keras.Model) for part in parts):
            return None
        model, discriminator = parts
    from tutorial_dl.replica.keras_gan import KerasGan

    return KerasGan(model, discriminator)


def one_dimensional_gan(dataset: Dataset, seed: int = 0) -> Any:
    """A GAN of numbers: 32 tanh in each player."""
    if prod(sample_shape("one-dimensional-gan", dataset)) != 1:
        raise ValueError(
            f"model 'one-dimensional-gan' makes numbers: dataset '{dataset.name}' has samples of "
            f"shape {dataset.inputs_shape}"
        )
    from tutorial_dl.replica.one_dimensional_gan import OneDimensionalGan

    return OneDimensionalGan(seed=seed)


def curve(dataset: Dataset, seed: int = 0) -> replica.Replica:
    """A cubic w0 + w1 x + w2 x^2 + w3 x^3, from one number to one number; it starts from w = 0."""
    inputs = prod(sample_shape("curve", dataset))
    if inputs != 1 or dataset.classes or outputs("curve", dataset) != 1:
        raise ValueError(
            f"model 'curve' maps one number to one number: dataset '{dataset.name}' has "
            f"samples of shape {dataset.inputs_shape}"
            + (f" in {dataset.classes} classes" if dataset.classes else "")
        )
    return replica.CurveReplica(degree=3)


def softmax(dataset: Dataset, seed: int = 0) -> replica.Replica:
    """A linear classifier (softmax regression)."""
    if dataset.classes is None:
        raise ValueError(f"model 'softmax' needs classes: dataset '{dataset.name}' has none")
    inputs = prod(sample_shape("softmax", dataset))
    return replica.SoftmaxReplica(inputs, classes_of(dataset), seed=seed)


def dense(dataset: Dataset, seed: int = 0) -> replica.Replica:
    """A dense network with two hidden layers: 256 ReLU for classes, 64 tanh for regression."""
    hidden = 256 if dataset.classes else 64
    sizes = (prod(sample_shape("dense", dataset)), hidden, hidden, outputs("dense", dataset))
    if dataset.classes:
        return replica.DenseReplica(sizes, "relu", "cross_entropy", seed=seed)
    return replica.DenseReplica(sizes, "tanh", "mse", seed=seed)


def transformer(dataset: Dataset, seed: int = 0) -> replica.Replica:
    """A small GPT in numpy: 2 blocks of width 64 with 4 heads; `gpt` is the same in Keras."""
    tokens, positions = text_shape("transformer", dataset)
    return replica.TransformerReplica(tokens, positions, seed=seed)


def classes_of(dataset: Dataset) -> int | None:
    """The number of classes, for an output of each; ValueError if few of them occur."""
    found = dataset.classes
    if found and found > SPARSE:
        parts = [one for one in (dataset.train, dataset.validation) if one is not None]
        labels = np.unique(
            np.concatenate([np.unique(one.targets[:]) for one in parts if one is not None])
        )
        if found > 10 * len(labels):
            raise ValueError(
                f"dataset '{dataset.name}' has {len(labels)} different labels, up to {found - 1}: "
                "number them from 0 (np.unique(labels, return_inverse=True))"
            )
    return found


def text_shape(model: str, dataset: Dataset) -> tuple[int, int]:
    """(Tokens, positions) of data whose samples are tokens and those that follow them."""
    shape, targets = sample_shape(model, dataset), dataset.train.targets
    words = not isinstance(targets, (tuple, dict)) and targets.shape[1:] == shape
    if len(shape) != 1 or not words or not dataset.classes:
        raise ValueError(
            f"model '{model}' predicts the next token at each position: dataset '{dataset.name}' "
            f"has samples of shape {shape}; use data 'text', or tokens (n, t) and targets (n, t)"
        )
    return classes_of(dataset), shape[0]


def sample_shape(model: str, dataset: Dataset) -> tuple[int, ...]:
    """Shape of one sample; raises ValueError if the dataset has several inputs."""
    shape = dataset.inputs_shape
    if isinstance(shape, dict) or (shape and isinstance(shape[0], tuple)):
        raise ValueError(
            f"model '{model}' has one input: dataset '{dataset.name}' has {len(shape)}; "
            "build a model of your own and name it as module:function"
        )
    return shape


def outputs(model: str, dataset: Dataset) -> int:
    """Number of outputs: one per class, or one per number of a target."""
    targets = dataset.train.targets
    if dataset.classes:
        if np.ndim(targets) > 1 and targets.shape[1:] == dataset.inputs_shape != (1,):
            raise ValueError(
                f"model '{model}' predicts one class per sample: dataset '{dataset.name}' has one "
                "per position; use model 'gpt' or 'transformer'"
            )
        return classes_of(dataset)
    if isinstance(targets, (tuple, dict)):
        raise ValueError(
            f"model '{model}' has one output: dataset '{dataset.name}' has {len(targets)}; "
            "build a model of your own and name it as module:function"
        )
    return prod(targets.shape[1:])


def one_hot(dataset: Dataset) -> bool:
    """Whether targets are one-hot rows (zeros and a single one); checks the first 100 samples."""
    targets = dataset.train.targets
    if isinstance(targets, (tuple, dict)) or targets.ndim != 2 or targets.shape[1] < 2:
        return False
    rows = dataset.train.take(slice(0, 100))[1]
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all())
