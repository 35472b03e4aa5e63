"""The table of all optimizers that the tests of optimizers share.

Learning rates are powers of two, because Keras rounds a learning rate to float32.
"""

from __future__ import annotations

from math import isqrt, prod
from typing import NamedTuple

import numpy as np

from numba_kernels.optimizers import (
    LAMB,
    LARS,
    SGD,
    SOAP,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Averaged,
    Lion,
    Muon,
    Nadam,
    Prodigy,
    RMSprop,
    ScheduleFreeAdamW,
    ScheduleFreeSGD,
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
    "muon": (Muon(1 / 16, weight_decay=0.25, adam_weight_decay=0.5, adam=("c",)), "keras"),
    "muon_plain": (Muon(1 / 16, 0.8, False, 0.25, None, adam_weight_decay=0.0, adam=()), "keras"),
    "muon_with_a_head": (
        Muon(1 / 16, nesterov=False, weight_decay=0.25, epsilon=1e-12, adam_weight_decay=0.0),
        "optax",
    ),
    "soap": (SOAP(1 / 64, weight_decay=0.25, every=3, adam=()), "paper"),
    "adafactor": (Adafactor(1 / 16, clip_threshold=0.5), "keras"),
    "adafactor_alone": (Adafactor(1 / 16), "optax"),
    "schedule_free_sgd": (ScheduleFreeSGD(1 / 16, weight_decay=0.25), "optax"),
    "schedule_free_adamw": (ScheduleFreeAdamW(1 / 16, 0.8, 0.125, beta_2=0.99), "optax"),
    "schedule_free_warm": (ScheduleFreeAdamW(1 / 16, warm_up=7, beta_2=0.99), "paper"),
    "prodigy": (Prodigy(weight_decay=0.125, first_estimate=1e-3), "optax"),
    "average": (Averaged(Adam(1 / 64), 0.75, overwrite=7, at_end=True), "keras"),
    "look_ahead": (Averaged(SGD(1 / 16, momentum=0.9), 0.5, every=5, overwrite=5), "optax"),
}


class Array(NamedTuple):
    """A segment as optimizers know it."""

    name: str
    offset: int
    shape: tuple[int, ...]


SHAPES = (8, 5), (3,), (4, 12), (3, 18)
SIZES = [prod(shape) for shape in SHAPES]
OFFSETS = (0, *np.cumsum(SIZES[:-1]).tolist())  # for rules that need the layers
N = sum(SIZES)
SEGMENTS = [Array(*one) for one in zip("abcd", OFFSETS, SHAPES, strict=True)]
LAYERS = [slice(a, b) for a, b in zip(OFFSETS, (*OFFSETS[1:], N), strict=True)]


def problem(steps: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Weights (N,) and gradients (steps, N) of all magnitudes; one layer begins, one stays zero."""
    generator = np.random.default_rng(1)
    w = generator.normal(size=N)
    gradients = generator.normal(size=(steps, N)) * 10 ** generator.uniform(-3, 1, size=N)
    w[LAYERS[1]] = 0
    gradients[:, LAYERS[2]] = 0
    return w, gradients


def matrices(offsets, n: int) -> list[Array]:
    """Segments at these offsets, as nearly square as their sizes allow; gaps stay behind them."""
    found = []
    for i, (at, end) in enumerate(zip(offsets, [*offsets[1:], n], strict=True)):
        rows = max(1, isqrt(end - at))
        found.append(Array(f"array_{i}", at, (rows, (end - at) // rows)))
    return found


def edges_of(rule, n: int, ranks: int, segments) -> list[int]:
    """Where `ranks` slices of n elements may end, for any rule."""
    if rule.whole:
        return rule.edges(n, ranks, segments).tolist()
    return [n * i // ranks for i in range(ranks + 1)]


def ours(rule, w, gradients, dtype=np.float64):
    """The weights that a rule ends with: those that it shows."""
    w = w.astype(dtype)
    state = rule.init(w.size, dtype, SEGMENTS)
    for gradient in gradients.astype(dtype):
        rule.update(w, gradient, state)
    assert state.step == len(gradients)
    rule.show(w, state, True)
    return w
