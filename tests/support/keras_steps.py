"""What keras.optimizers make of the table's rules, in float64: a program that writes an .npz.

python keras_steps.py FILE

It runs apart from the tests, and on JAX: of Keras's backends only this and TensorFlow, which takes
longer to load, compute in float64.
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
    """The weights after all steps; a variable a layer, where that makes a difference."""
    w, gradients = problem()
    layers = LAYERS if rule.layered else [slice(None)]
    optimizer = theirs(rule, **asdict(rule))
    variables = [keras.Variable(w[layer], dtype="float64") for layer in layers]
    optimizer.build(variables)
    for gradient in gradients:
        optimizer.apply([gradient[layer] for layer in layers], variables)
    return np.concatenate([np.asarray(variable.value) for variable in variables])


results = {name: trained(rule) for name, (rule, source) in RULES.items() if source == "keras"}
for name in optimizers.NAMES:  # defaults, of those that bear a name of Keras's
    rule = optimizers.get(name)
    if name in ("lars", "lamb", "momentum", "nesterov"):
        continue
    config = theirs(rule).get_config()
    for field in asdict(rule):
        results[f"default {name} {field}"] = np.float64(config[field] or 0)
np.savez(sys.argv[1], **results)
