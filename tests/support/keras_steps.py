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
from rules import LAYERS, RULES, problem

from numba_kernels import optimizers

keras.config.set_floatx("float64")


def theirs(rule, **given):
    kind = type(rule).__name__
    return getattr(keras.optimizers, {"LAMB": "Lamb"}.get(kind, kind))(**given)


def trained(rule) -> np.ndarray:
    """The weights after all steps, with one variable per layer where that makes a difference."""
    w, gradients = problem()
    layers = LAYERS if rule.layered else [slice(None)]
    optimizer = theirs(rule, **asdict(rule))
    variables = [keras.Variable(w[layer], dtype="float64") for layer in layers]
    optimizer.build(variables)
    for gradient in gradients:
        optimizer.apply([gradient[layer] for layer in layers], variables)
    return np.concatenate([np.asarray(variable.value) for variable in variables])


results = {name: trained(rule) for name, (rule, source) in RULES.items() if source == "keras"}
for name, (rule, source) in RULES.items():  # defaults of the rules that Keras has
    if source != "keras" or name not in optimizers.NAMES or name in ("momentum", "nesterov"):
        continue
    rule = optimizers.get(name)
    config = theirs(rule).get_config()
    for field in asdict(rule):
        results[f"default {name} {field}"] = np.float64(config[field] or 0)
np.savez(sys.argv[1], **results)
