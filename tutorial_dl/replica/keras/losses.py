"""Losses of a batch that several ranks share, where a loss divides by something else than samples.

A loss with a mask is the mean over the time steps that count. With V_r of them on rank r, and n_r
samples, ranks average their losses by n_r, but the loss of the whole batch is

    L = sum_r V_r L_r / V = sum_r (n_r / N) f_r L_r,   f_r = (V_r / V) / (n_r / N)

so rank r multiplies its loss, and with it the gradient, by f_r. That takes one allreduce of two
numbers for each masked output, inside TensorFlow's graph. Regularisers are not affected.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tutorial_dl.replica.keras.collective_layers import has_samples
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf

MASKING = (keras.layers.Masking, keras.layers.Embedding)


def may_mask(model: keras.Model) -> bool:
    """Whether a layer may make a mask: Masking, Embedding(mask_zero=True), or a user's layer."""

    return any(map(may_mask_by, model._flatten_layers(include_self=False)))


def may_mask_by(layer: keras.Layer) -> bool:
    """Whether this layer may make a mask."""
    if isinstance(layer, keras.layers.Embedding):
        return layer.mask_zero
    own = type(layer).__module__.split(".")[0] != "keras" and not isinstance(layer, keras.Model)
    own = own and not getattr(layer, "makes_no_mask", False)
    return isinstance(layer, keras.layers.Masking) or own


def why_masked(model: keras.Model) -> tuple[str, str] | None:
    """What may make a mask, and why that is refused, in words; None: nothing does."""
    found = [layer for layer in model._flatten_layers(include_self=False) if may_mask_by(layer)]
    if not found:
        return None
    if type(found[0]).__module__.split(".")[0] == "keras":
        return f"model '{model.name}' with a mask", "its loss is not a mean over samples"
    return f"layer '{found[0].name}'", (
        f"{type(found[0]).__name__} is no layer of Keras and may make a mask; if it makes none, "
        "give its class makes_no_mask = True"
    )


def masked(outputs: Any) -> bool:
    """Whether an output of a model, just computed, has a mask."""
    return any(_mask(output) is not None for output in keras.tree.flatten(outputs))


@contextmanager
def losses_by(model: keras.Model, function) -> Iterator[None]:
    """Within, each compiled loss L is function(L, V, n), with V and n as above for its output.

    V is None if the output has no mask. For tracing a graph: afterwards the losses are as before.
    """
    compiled = model._compile_loss
    if compiled is None:  # only regularisers and added losses
        yield
        return
    before = compiled._flat_losses
    compiled._flat_losses = [one._replace(loss=_Changed(one.loss, function)) for one in before]
    try:
        yield
    finally:
        compiled._flat_losses = before


class _Changed:
    """A loss, and what is done to its value."""

    def __init__(self, loss: Any, function) -> None:
        self.loss, self.function = loss, function

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        value, mask = self.loss(y_true, y_pred, sample_weight), _mask(y_pred)
        counted = None if mask is None else tf.reduce_sum(tf.cast(mask, tf.float64))
        return self.function(value, counted, tf.cast(tf.shape(y_pred)[0], tf.float64))


def over_ranks(team):
    """The function for `losses_by` that multiplies by f_r; every rank of `team` computes it."""
    from tutorial_dl.replica.keras.collectives import in_order

    def summed(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [team.allreduce(np.array(arrays[0]))]

    def scaled(loss: tf.Tensor, counted: tf.Tensor | None, samples: tf.Tensor) -> tf.Tensor:
        if counted is None:
            return loss
        own = tf.stack([counted, samples])
        if not has_samples():
            own = tf.zeros_like(own)
        all_ = in_order(summed, [own], [(tf.float64, (2,))], "masked_loss", all_teams=False)[0]
        share = tf.math.divide_no_nan(own, all_)  # V_r / V, n_r / N
        return loss * tf.cast(tf.math.divide_no_nan(share[0], share[1]), loss.dtype)

    return scaled


def _mask(output: Any) -> Any:
    return getattr(output, "_keras_mask", None)
