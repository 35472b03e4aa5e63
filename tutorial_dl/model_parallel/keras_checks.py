"""Keras models that ranks can't compute together, each refused by name, in one line.

They are refused because ranks, or micro-batches, would not give what one rank gives for the whole
batch, or because no rank could compute it with its part of the model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tutorial_dl.replica.keras.collective_layers import CollectiveLayer
from tutorial_dl.replica.keras.graphs import keras
from tutorial_dl.replica.keras.losses import why_masked
from tutorial_dl.replica.keras.own_step import has_own_step
from tutorial_dl.replica.keras.replica import KerasReplica

METHODS = ("compute_loss", "compute_metrics", "test_step")  # of a model


def refusing(way: str) -> Callable[[str, str], NoReturn]:
    def refuse(what: str, instead: str) -> NoReturn:
        raise ValueError(f"{way} can't compute {what}: {instead}")

    return refuse


def check_model(
    model: Any, way: str, mixed: bool = False, methods: Sequence[str] = ("call", *METHODS)
) -> None:
    """What no way of dividing a model takes; `mixed`: layers may compute in half precision.

    `methods` of its class would be lost where another model is computed.
    """
    refuse = refusing(way)
    if not getattr(model, "inputs", None) or has_own_step(model):
        refuse(f"model '{model.name}'", "it takes a functional or sequential one")
    for name in methods:
        if name in overridden(type(model)):
            refuse(f"model '{model.name}'", f"its class has a {name} of its own")
    if words := why_masked(model):
        refuse(*words)
    for layer in model._flatten_layers():
        if layer.compute_dtype != layer.variable_dtype and not mixed:
            refuse(
                f"layer '{layer.name}'",
                f"it computes in {layer.compute_dtype}, its weights are {layer.variable_dtype}",
            )
        if getattr(layer, "stateful", False):
            refuse(f"layer '{layer.name}'", "it keeps states from batch to batch")


def accuracy(model: Any) -> bool:
    """Whether the model was compiled with accuracy, the one metric that a pipeline computes."""
    asked = keras.tree.flatten(model.get_compile_config().get("metrics") or [])
    return asked in (["accuracy"], ["acc"])


def check_stages(replica: KerasReplica, what: str, in_pieces: bool) -> None:
    """Raise ValueError, with the layer's name, if `what` can't compute a model exactly by stages.

    `in_pieces`: a batch is computed in micro-batches.
    """
    model, refuse = replica.model, refusing(what)
    check_model(model, what, methods=["call"])
    if not isinstance(model, keras.Sequential) and isinstance(model.input, dict):
        refuse(f"model '{model.name}'", "it takes inputs as a list, not as a dictionary")
    for layer in model._flatten_layers():
        name = f"layer '{layer.name}'"
        if in_pieces and getattr(layer, "seed_generator", None) is not None:
            refuse(name, "Keras draws its masks batch by batch, which micro-batches change")
        floats = [v for v in layer.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)]
        if in_pieces and floats and layer is not model:
            batch = type(layer).__name__ == "BatchNormalization"
            refuse(
                name,
                "its statistics are of a batch; use LayerNormalization"
                if batch
                else "it has weights that are not trained, which a pipeline can't hold",
            )
        if getattr(layer, "activity_regularizer", None) is not None:
            refuse(name, "it has a regulariser of its outputs; use weight decay")
    if model.losses:
        refuse(f"model '{model.name}'", "it has regularisers or add_loss; use weight decay")
    if replica.traits.constrained:
        refuse(f"model '{model.name}'", "its weights have constraints")
    if not in_pieces:
        return
    if len(model.outputs) != 1:
        refuse(f"model '{model.name}'", "it takes one output")
    asked = keras.tree.flatten(model.get_compile_config().get("metrics") or [])
    if asked and not accuracy(model):
        refuse(f"metrics {asked}", "compile with metrics=['accuracy'] or none, and evaluate later")


def check_sharded(inner: KerasReplica, stage: int) -> None:
    """Raise ValueError for losses, metrics and layers that need the whole model, or all ranks."""
    if inner.traits.library != "keras" or inner.holding is not None:
        raise ValueError(
            f"shard {stage} takes Keras models, such as gpt and mlp, and this is a "
            f"{type(inner).__name__}: use shard 1; of numpy layers, model_parallel.ZeRO is the "
            "lesson"
        )
    name, model, kind = f"model '{inner.model.name}'", inner.model, type(inner.model)
    collective = any(isinstance(layer, CollectiveLayer) for layer in model._flatten_layers())
    own = next((m for m in METHODS if m in overridden(kind)), None)
    for found, words in (
        (collective, "layers that need all ranks, such as synchronised batch normalisation: use "
                     "shard 1"),
        (inner.traits.changes_parameters, "SpectralNormalization, which changes whole weights: use "
                                          "shard 1"),
        (own, f"{name}: it has its own {own}, which may need the whole model; use shard 1"),
        (inner.metrics.beyond_compile_of_keras, f"{name}: it has losses or metrics of your own, "
         "which are tried out on the whole model; use Keras's own, or shard 1"),
    ):  # fmt: skip
        if found:
            raise ValueError(f"shard {stage} can't compute {words}")
    if model.run_eagerly:
        raise ValueError(f"shard {stage} computes graphs: compile {name} without run_eagerly")


def overridden(kind: type) -> set[str]:
    """The methods of keras.Model that a class of the user's replaces."""
    own = [one for one in kind.__mro__ if not one.__module__.startswith("keras.")]
    return {name for one in own if one is not object for name in vars(one)}
