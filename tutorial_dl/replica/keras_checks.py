"""Check that a Keras model can be trained as two flat vectors; if not, one line says why."""

from __future__ import annotations

from typing import Any

from tutorial_dl.tensorflow_chatter import hide_tensorflow_chatter

hide_tensorflow_chatter()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402, F401  (both for the other keras_ files, after the above)


def check_model(model: Any) -> None:
    """Raise a one-line TypeError or ValueError if the model can't be trained as flat vectors."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"the Keras backend must be tensorflow, got {keras.backend.backend()}: set "
            "KERAS_BACKEND=tensorflow before Keras is imported"
        )
    if not isinstance(model, keras.Model):
        raise TypeError(f"a {type(model).__name__} is not a keras.Model")
    name = f"model '{model.name}'"
    if not model.built:
        raise ValueError(
            f"{name} has no weights yet: give it a keras.Input, or call it on a batch first"
        )
    if not model.compiled:
        raise ValueError(f"{name} is not compiled: call model.compile(loss=..., metrics=[...])")
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            f"{name} overrides train_step, which would not be called: "
            "override compute_loss instead, or write a Replica"
        )
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
            raise ValueError(
                f"{name}: its loss has reduction '{reduction}'; averages over ranks need "
                "a mean over samples, 'sum_over_batch_size'"
            )
    if not model.trainable_weights:
        raise ValueError(f"{name} has no trainable weights")
    dtypes = {v.dtype for v in model.trainable_weights}
    if dtypes not in ({"float32"}, {"float64"}):
        raise ValueError(
            f"{name} has trainable weights of dtype {', '.join(sorted(dtypes))}: "
            "expected all float32 or all float64"
        )
    # Keras computes losses in the precision that was its default when the model was compiled.
    if dtypes == {"float64"} and "float32" in _loss_dtypes(model):
        raise ValueError(
            f"{name} has float64 weights but a float32 loss: build and compile it under "
            "keras.config.set_floatx('float64')"
        )


def check_metrics(model: keras.Model) -> None:
    """Raise ValueError for a metric that is not a mean over samples: it can't be averaged."""
    compiled = model._compile_metrics
    if compiled is None:
        return
    given = keras.tree.flatten([compiled._user_metrics, compiled._user_weighted_metrics])
    objects = [metric for metric in given if isinstance(metric, keras.metrics.Metric)]
    for metric in [*objects, *compiled.metrics]:  # metrics given as strings are made later
        if not isinstance(metric, keras.metrics.Mean):
            raise ValueError(
                f"model '{model.name}': metric '{metric.name}' is not a mean over samples, so it "
                "can't be averaged over ranks: leave it out of compile, and call "
                "model.evaluate after training"
            )


def _loss_dtypes(model: keras.Model) -> set[str]:
    losses = [model._compile_loss, *keras.tree.flatten(model.loss)]
    return {loss.dtype for loss in losses if isinstance(loss, keras.losses.Loss)}
