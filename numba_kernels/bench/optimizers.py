"""Bench: one update of n parameters, on one thread, against Keras's compiled graph and others.

Every optimizer is measured at 100,000 and 1.2 million parameters; at 10 million, where a call of a
peer takes up to a second, SGD, momentum and Adam only, or all from `--seconds 120` on.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from .. import optimizers
from ..window import aligned
from .timing import copy_bandwidth, medians

SIZES = (100_000, 1_200_000)
LARGE, AT_LARGE, ALL_SECONDS = 10_000_000, ("sgd", "momentum", "adam"), 120


def rows(seconds: float) -> list[dict]:
    """One row a rule, size and peer; peers that can't be imported are left out."""
    bandwidth = copy_bandwidth(lambda: None)
    large = optimizers.NAMES if seconds >= ALL_SECONDS else AT_LARGE
    pairs = [(name, n) for name in optimizers.NAMES for n in SIZES] + [(x, LARGE) for x in large]
    found = []
    for name, n in pairs:
        peers = {peer: make(name, n) for peer, make in PEERS.items()}
        peers = {peer: update for peer, update in peers.items() if update}
        calls = [our_update(name, n), *peers.values()]
        ours, *theirs = medians(calls, rounds=5, seconds=min(0.02, seconds / (40 * len(pairs))))
        for peer, peer_seconds in zip(peers, theirs, strict=True):
            found.append(
                {
                    "what": "update",
                    "ranks": 1,
                    "parameters": n,
                    "algorithm": name,
                    "dtype": "float32",
                    "ours_us": 1e6 * ours,
                    "peer": peer,
                    "peer_us": 1e6 * peer_seconds,
                    "ratio": peer_seconds / ours,
                    "fraction_of_limit": moved(name) * 4 * n / bandwidth / ours,
                }
            )
    return found


def moved(name: str) -> int:
    """Floats read and written for each parameter."""
    rule = optimizers.get(name)
    once = 3 + 2 * rule.slots  # w is read and written, as are running averages; g is read
    return once + {"lars": 2, "lamb": 3}.get(name, 0)  # the first pass, less what it spares


def our_update(name: str, n: int) -> Callable[[], None]:
    rule = optimizers.get(name)
    w, g = aligned(n, np.float32), aligned(n, np.float32)
    w[:], g[:] = 1, 1e-3
    state = rule.init(n, segments=[0])
    return lambda: rule.update(w, g, state)


def numpy_update(name: str, n: int) -> Callable[[], None] | None:
    """The rule as numpy users write it: one pass over memory for every operation."""
    rule = optimizers.get(name)
    w, g = np.ones(n, np.float32), np.full(n, 1e-3, np.float32)
    m, s = np.zeros(n, np.float32), np.zeros(n, np.float32)

    def sgd():
        w[:] = w - rule.learning_rate * g

    def momentum():
        m[:] = rule.momentum * m - rule.learning_rate * g
        w[:] = w + m

    def adam():
        m[:] = rule.beta_1 * m + (1 - rule.beta_1) * g
        s[:] = rule.beta_2 * s + (1 - rule.beta_2) * g * g
        w[:] = w - rule.learning_rate * m / (np.sqrt(s) + rule.epsilon)

    def lars():
        of_w, of_g = np.linalg.norm(w), np.linalg.norm(g)
        trust = rule.trust_coefficient * of_w / (of_g + rule.weight_decay * of_w)
        m[:] = rule.momentum * m + rule.learning_rate * trust * (g + rule.weight_decay * w)
        w[:] = w - m

    return {"adam": adam, "momentum": momentum, "sgd": sgd, "lars": lars}.get(name)


def keras_update(name: str, n: int) -> Callable[[], None] | None:
    """Keras's own optimizer in a compiled graph, on one thread. (It has no LARS.)"""
    if importlib.util.find_spec("tensorflow") is None or name == "lars":
        return None
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import tensorflow as tf

    rule = optimizers.get(name)
    kind = {"LAMB": "Lamb"}.get(type(rule).__name__, type(rule).__name__)
    theirs = getattr(keras.optimizers, kind)(**asdict(rule))
    w = keras.Variable(np.ones(n, np.float32))
    g = tf.constant(np.full(n, 1e-3, np.float32))
    theirs.build([w])
    return tf.function(lambda: theirs.apply([g], [w]))


def torch_update(name: str, n: int) -> Callable[[], None] | None:
    """PyTorch's fused kernels, of those rules that have one for the CPU."""
    kinds = {"sgd": "SGD", "momentum": "SGD", "nesterov": "SGD", "adagrad": "Adagrad"}
    kinds |= {"adam": "Adam", "adamw": "AdamW"}
    if importlib.util.find_spec("torch") is None or name not in kinds:
        return None
    import torch

    torch.set_num_threads(1)
    w = torch.nn.Parameter(torch.ones(n))
    w.grad = torch.full((n,), 1e-3)
    rule = optimizers.get(name)
    given = {key: getattr(rule, key) for key in ("momentum", "nesterov") if hasattr(rule, key)}
    return getattr(torch.optim, kinds[name])([w], rule.learning_rate, fused=True, **given).step


PEERS = {"numpy": numpy_update, "keras": keras_update, "torch fused": torch_update}
