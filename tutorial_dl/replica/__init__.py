"""Replicas: models of any kind as two flat vectors (see `base`).

replica.CurveReplica, SoftmaxReplica, DenseReplica,
    LayeredReplica, TransformerReplica                  numpy
replica.of(model)                                       a compiled Keras model, or any Replica
replica.check(replica, batches)                         contract tests for one of your own

base.py, contract.py     what a replica is, and must keep; vectors.py: base of curve.py and dense.py
holding.py               what a rank holds of a model, and which ranks hold the same
layers.py, layered.py    chains of numpy layers; transformer.py: a small GPT of them;
sampling.py              text from it
keras/                   Keras models; joining.py: their gradients in one vector
proxy.py                 a Replica around another object; and in micro-batches
gan.py                   two players; one_dimensional_gan.py in numpy, keras_gan.py,
                         keras_spectral.py: layers for discriminators
consistency.py           what is equal on all ranks; random_state.py: what differs
"""

from dataclasses import fields
from functools import partial
from importlib import import_module
from typing import Any

import lazy_loader

from tutorial_dl.replica.base import MEASURING, REQUIRED, Batch, Replica, Segment, Traits
from tutorial_dl.replica.proxy import ReplicaProxy

# Lazily: Numba takes a third of a second to import, TensorFlow several.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "contract": ["check"],
        "curve": ["CurveReplica"],
        "dense": ["DenseReplica", "SoftmaxReplica"],
        "holding": ["Holding"],
        "keras.replica": ["KerasReplica"],
        "layered": ["LayeredReplica"],
        "transformer": ["TransformerReplica"],
    },
)
__all__ += ["Batch", "Replica", "Segment", "Traits", "of"]


# Who makes the Replica of a library's model, as "module:name"; by the top package of its class
FACTORIES = {"keras": "tutorial_dl.replica.keras.replica:KerasReplica"}


TRAITS = {field.name for field in fields(Traits)} - {"library"}


def of(model: Any) -> Replica:
    """Return the Replica of `model`: a compiled Keras model, a Replica, or an object like one.

    An object of another class that has the attributes `base.REQUIRED` is wrapped in a ReplicaProxy.
    """
    for name in TRAITS & {*dir(type(model)), *getattr(model, "__dict__", ())}:
        raise TypeError(f"{type(model).__name__}.{name}: write traits = Traits({name}=...) instead")
    if isinstance(model, Replica):
        return model
    for kind in type(model).__mro__:
        if (factory := FACTORIES.get(kind.__module__.partition(".")[0])) is not None:
            module, _, name = factory.partition(":")
            return getattr(import_module(module), name)(model)
    has = partial(hasattr, model)
    if not isinstance(model, type) and all(map(has, REQUIRED)) and any(map(has, MEASURING)):
        return ReplicaProxy(model)
    raise TypeError(
        f"a {type(model).__module__}.{type(model).__name__} is not a model: expected a compiled "
        "keras.Model or a Replica (tutorial_dl.replica)"
    )
