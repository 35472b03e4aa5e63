"""Bench: one update of n parameters, on one thread, against Keras's compiled graph."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import numpy as np

from ..optimizers import SGD, Adam
from .timing import copy_bandwidth, medians

SIZES = (100_000, 1_200_000, 10_000_000)


def rows(seconds: float) -> list[dict]:
    """One row a rule, size and peer; numpy is always there, Keras if it can be imported."""
    bandwidth = copy_bandwidth(lambda: None)
    keras_too = importlib.util.find_spec("tensorflow") is not None
    found = []
    for rule, passes in ((SGD(0.01), 3), (SGD(0.01, 0.9), 5), (Adam(0.001), 7)):
        for n in SIZES:
            w, g = np.ones(n, np.float32), np.full(n, 1e-3, np.float32)
            state = rule.init(n)
            peers = {"numpy": numpy_update(rule, n)}
            if keras_too:
                peers["keras"] = keras_update(rule, n)
            calls = [lambda r=rule, w=w, g=g, s=state: r.update(w, g, s), *peers.values()]
            ours, *theirs = medians(calls, rounds=7, seconds=min(0.03, seconds / 500))
            for peer, peer_seconds in zip(peers, theirs, strict=True):
                found.append(
                    {
                        "what": "update",
                        "ranks": 1,
                        "parameters": n,
                        "algorithm": name(rule),
                        "dtype": "float32",
                        "ours_us": 1e6 * ours,
                        "peer": peer,
                        "peer_us": 1e6 * peer_seconds,
                        "ratio": peer_seconds / ours,
                        "fraction_of_limit": passes * 4 * n / bandwidth / ours,
                    }
                )
    return found


def name(rule) -> str:
    return "adam" if isinstance(rule, Adam) else "momentum" if rule.momentum else "sgd"


def numpy_update(rule, n: int) -> Callable[[], None]:
    """The rule as numpy users write it: one pass over memory for every operation."""
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

    return {"adam": adam, "momentum": momentum, "sgd": sgd}[name(rule)]


def keras_update(rule, n: int) -> Callable[[], None]:
    """Keras's own optimizer in a compiled graph, on one thread."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import tensorflow as tf

    theirs = {
        "adam": lambda: keras.optimizers.Adam(rule.learning_rate),
        "momentum": lambda: keras.optimizers.SGD(rule.learning_rate, momentum=0.9),
        "sgd": lambda: keras.optimizers.SGD(rule.learning_rate),
    }[name(rule)]()
    w = keras.Variable(np.ones(n, np.float32))
    g = tf.constant(np.full(n, 1e-3, np.float32))
    theirs.build([w])
    return tf.function(lambda: theirs.apply([g], [w]))
