"""Keras models that can't be computed stage by stage, each refused by name.

They are refused because micro-batches would not give what the whole batch gives, or because no
stage can compute it alone: batch normalisation and other layers with statistics, dropout, masks,
regularisers, constraints, mixed precision, several outputs, weights shared over stages.
"""

from __future__ import annotations

from typing import Any

from tutorial_dl.replica.keras.graphs import keras
from tutorial_dl.replica.keras.losses import why_masked
from tutorial_dl.replica.keras.own_step import has_own_step
from tutorial_dl.replica.keras.replica import KerasReplica


def accuracy(model: Any) -> bool:
    """Whether the model was compiled with accuracy, the one metric that a pipeline computes."""
    asked = keras.tree.flatten(model.get_compile_config().get("metrics") or [])
    return asked in (["accuracy"], ["acc"])


def check(replica: KerasReplica, what: str = "a pipeline", in_pieces: bool = True) -> None:
    """Raise ValueError, with the layer's name, if `what` can't compute a model exactly by stages.

    `in_pieces`: a batch is computed in micro-batches.
    """
    model = replica.model

    def refuse(which: str, instead: str) -> None:
        raise ValueError(f"{what} can't compute {which}: {instead}")

    layers = list(model._flatten_layers())
    if not getattr(model, "inputs", None) or has_own_step(model):
        refuse(f"model '{model.name}'", "it takes a functional or sequential one")
    if isinstance(getattr(model, "_inputs_struct", None), dict):
        refuse(f"model '{model.name}'", "it takes inputs as a list, not as a dictionary")
    for layer in layers:
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
        if layer.compute_dtype != layer.variable_dtype:
            refuse(name, f"it computes in {layer.compute_dtype}, its weights are float32")
        if getattr(layer, "stateful", False):
            refuse(name, "it keeps states from batch to batch")
        if getattr(layer, "activity_regularizer", None) is not None:
            refuse(name, "it has a regulariser of its outputs; use weight decay")
    if words := why_masked(model):
        refuse(*words)
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
