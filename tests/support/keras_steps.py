"""A program that trains with keras.optimizers in float64 and writes the weights to an .npz.

python keras_steps.py FILE

It takes the rules of the table in rules.py. It is a process of its own because it uses JAX: of
Keras's backends only JAX and TensorFlow, which loads more slowly, compute in float64.
"""

import os
import sys
from dataclasses import asdict

os.environ |= {"KERAS_BACKEND": "jax", "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}

import keras
import numpy as np
from rules import LAYERS, RULES, SEGMENTS, problem

from numba_kernels import optimizers
from numba_kernels.optimizers import Averaged

keras.config.set_floatx("float64")


def theirs(rule, **given):
    if isinstance(rule, Averaged):
        average = {"ema_momentum": rule.keep, "ema_overwrite_frequency": rule.overwrite}
        return theirs(rule.inner, **asdict(rule.inner), use_ema=True, **average)
    kind = type(rule).__name__
    if "adam" in given:
        given |= {"exclude_layers": list(given.pop("adam")), "exclude_embeddings": False}
    return getattr(keras.optimizers, {"LAMB": "Lamb"}.get(kind, kind))(**given)


def trained(rule) -> np.ndarray:
    """The weights after all steps, with one variable per layer where that makes a difference."""
    w, gradients = problem()
    layers = LAYERS if rule.layered or rule.whole else [slice(None)]
    shapes = [one.shape for one in SEGMENTS] if rule.whole else [(-1,)] * len(layers)
    optimizer = theirs(rule, **({} if isinstance(rule, Averaged) else asdict(rule)))
    parts = list(zip(layers, shapes, "abcd", strict=False))
    variables = [
        keras.Variable(w[layer].reshape(shape), dtype="float64", name=name)
        for layer, shape, name in parts
    ]
    optimizer.build(variables)
    for gradient in gradients:
        split = [gradient[layer].reshape(shape) for layer, shape, _ in parts]
        optimizer.apply(split, variables)
    optimizer.finalize_variable_values(variables)
    return np.concatenate([np.ravel(variable.value) for variable in variables])


results = {name: trained(rule) for name, (rule, source) in RULES.items() if source == "keras"}
for name, (rule, source) in RULES.items():  # defaults of the rules that Keras has
    if source != "keras" or name not in optimizers.NAMES or name in ("momentum", "nesterov"):
        continue
    rule = optimizers.get(name)
    config = theirs(rule).get_config()
    for field in asdict(rule):
        if field != "adam":
            results[f"default {name} {field}"] = np.float64(config[field] or 0)
np.savez(sys.argv[1], **results)
