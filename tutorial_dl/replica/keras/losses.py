"""Losses of a batch that several ranks share, where a loss divides by something else than samples.

A loss with a mask is the mean over the time steps that count. With V_r of them on rank r, and n_r
samples, ranks average their losses by n_r, but the loss of the whole batch is

    L = sum_r V_r L_r / V = sum_r (n_r / N) f_r L_r,   f_r = (V_r / V) / (n_r / N)

so rank r multiplies its loss, and with it the gradient, by f_r. That takes one allreduce of two
numbers for each masked output, inside TensorFlow's graph. A loss that is no mean at all, such as
one ratio over the batch, is computed of all ranks' outputs and targets. Regularisers are not
affected.
"""

from collections.abc import Callable, Container, Iterator
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
def losses_by(model: keras.Model, change: Callable) -> Iterator[None]:
    """Within, the i-th compiled loss is `change(i, loss)`; both are functions of (y, p, w).

    For tracing a graph: afterwards the losses are as before.
    """
    compiled = model._compile_loss
    if compiled is None:  # only regularisers and added losses
        yield
        return
    before = compiled._flat_losses
    compiled._flat_losses = [one._replace(loss=change(i, one.loss)) for i, one in enumerate(before)]
    try:
        yield
    finally:
        compiled._flat_losses = before


def by_count(function: Callable) -> Callable:
    """For `losses_by`: each loss L is function(L, V, n), with V and n as above for its output.

    V is None if the output has no mask.
    """

    def change(place: int, loss: Any) -> Callable:
        def changed(y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
            value, mask = loss(y_true, y_pred, sample_weight), _mask(y_pred)
            counted = None if mask is None else tf.reduce_sum(tf.cast(mask, tf.float64))
            return function(value, counted, tf.cast(tf.shape(y_pred)[0], tf.float64))

        return changed

    return change


def over_ranks(team: Any, whole: Container[int]) -> Callable:
    """For `losses_by`: the loss over the batch that all ranks of `team` share, each with a part.

    Losses with a mask are multiplied by f_r; those in places `whole` are computed of the outputs
    and targets of all ranks. Their gradient is multiplied by N / n_r, since ranks average it.
    """
    from tutorial_dl.replica.keras.collectives import in_order

    def summed(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [team.allreduce(np.array(arrays[0]))]

    @by_count
    def scaled(loss: tf.Tensor, counted: tf.Tensor | None, samples: tf.Tensor) -> tf.Tensor:
        if counted is None:
            return loss
        own = tf.stack([counted, samples])
        if not has_samples():
            own = tf.zeros_like(own)
        all_ = in_order(summed, [own], [(tf.float64, (2,))], "masked_loss", all_teams=False)[0]
        share = tf.math.divide_no_nan(own, all_)  # V_r / V, n_r / N
        return loss * tf.cast(tf.math.divide_no_nan(share[0], share[1]), loss.dtype)

    def of_all(loss: Any) -> Callable:
        def changed(y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
            given = (y_true, y_pred, () if sample_weight is None else sample_weight)
            y, p, w = whole_batch(team, given)
            value = tf.convert_to_tensor(loss(y, p, None if sample_weight is None else w))
            own = tf.cast(tf.shape(y_pred)[0] if has_samples() else 0, value.dtype)
            factor = tf.math.divide_no_nan(tf.cast(tf.shape(p)[0], value.dtype), own)
            kept = tf.stop_gradient(value)
            return kept + factor * (value - kept)

        return changed

    return lambda place, loss: of_all(loss) if place in whole else scaled(place, loss)


def whole_batch(team: Any, structure: Any) -> Any:
    """The rows of all ranks of `team`, in their order, for each tensor of a structure. Collective.

    A gradient goes through this rank's own rows only.
    """
    from tutorial_dl.replica.keras.collectives import in_order

    tensors = [tf.convert_to_tensor(t) for t in keras.tree.flatten(structure)]
    own = [t if has_samples() else t[:0] for t in tensors]
    floats = [
        tf.stop_gradient(t if t.dtype in (tf.float32, tf.float64) else tf.cast(t, tf.float64))
        for t in own
    ]

    def gathered(arrays: list[np.ndarray]) -> list[np.ndarray]:
        rows = team.allgather(np.array([len(arrays[0])], np.int64))[:, 0]
        sent = [np.array(a).ravel() for a in arrays]  # allgather wants arrays that may be written
        every = [np.concatenate([np.ravel(r) for r in team.allgather(a)]) for a in sent]
        shaped = [a.reshape(-1, *like.shape[1:]) for a, like in zip(every, arrays, strict=True)]
        return [*shaped, np.array([rows[: team.rank].sum(), rows[: team.rank + 1].sum()])]

    results = [*((t.dtype, (None, *t.shape[1:])) for t in floats), (tf.int64, (2,))]
    *found, ends = in_order(gathered, floats, results, "whole_batch", all_teams=False)
    joined = []
    for whole, mine, like in zip(found, own, tensors, strict=True):
        whole = tf.cast(whole, like.dtype)
        joined.append(tf.concat([whole[: ends[0]], mine, whole[ends[1] :]], 0))
    return keras.tree.pack_sequence_as(structure, joined)


def _mask(output: Any) -> Any:
    return getattr(output, "_keras_mask", None)
