"""The table of all optimizers that the tests of optimizers share.

Learning rates are powers of two, because Keras rounds a learning rate to float32.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.optimizers import (
    LAMB,
    LARS,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    Nadam,
    RMSprop,
)

# name: (rule, the implementation that is the reference)
RULES = {
    "sgd": (SGD(1 / 16), "keras"),
    "momentum": (SGD(1 / 16, momentum=0.9), "keras"),
    "nesterov": (SGD(1 / 16, momentum=0.9, nesterov=True), "keras"),
    "adagrad": (Adagrad(1 / 16, initial_accumulator_value=0.25, epsilon=1e-4), "keras"),
    "adadelta": (Adadelta(1.0, rho=0.9, epsilon=1e-5), "keras"),
    "rmsprop": (RMSprop(1 / 64, rho=0.8, epsilon=1e-5), "keras"),
    "rmsprop_momentum": (RMSprop(1 / 128, momentum=0.7), "keras"),
    "rmsprop_centered": (RMSprop(1 / 64, centered=True, epsilon=1e-4), "keras"),
    "rmsprop_both": (RMSprop(1 / 128, momentum=0.7, centered=True, epsilon=1e-4), "keras"),
    "adam": (Adam(1 / 64, beta_1=0.8, beta_2=0.95, epsilon=1e-4), "keras"),
    "adamw": (AdamW(1 / 64, weight_decay=0.25, beta_2=0.99), "keras"),
    "nadam": (Nadam(1 / 64, beta_2=0.99), "keras"),
    "lion": (Lion(1 / 256, beta_1=0.8, weight_decay=0.25), "keras"),
    "lamb_without_decay": (LAMB(1 / 64, weight_decay=0.0), "keras"),
    "lamb": (LAMB(1 / 64, weight_decay=0.25, epsilon=1e-4), "optax"),
    "lars_without_decay": (LARS(1.0, weight_decay=0.0, trust_coefficient=0.01), "optax"),
    "lars": (LARS(1.0, weight_decay=0.25, trust_coefficient=0.01), "paper"),
}

N = 137
OFFSETS = (0, 40, 43, 90)  # for rules that need the layers
LAYERS = [slice(a, b) for a, b in zip(OFFSETS, (*OFFSETS[1:], N), strict=True)]


def problem(steps: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Weights (N,) and gradients (steps, N) of all magnitudes; one layer begins, one stays zero."""
    generator = np.random.default_rng(1)
    w = generator.normal(size=N)
    gradients = generator.normal(size=(steps, N)) * 10 ** generator.uniform(-3, 1, size=N)
    w[LAYERS[1]] = 0
    gradients[:, LAYERS[2]] = 0
    return w, gradients
