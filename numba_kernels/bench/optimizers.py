"""Benchmark of one update of n parameters on one thread, against Keras's compiled graph and others.

Every optimizer that has a peer is measured with 100,000 and 1.2 million parameters. With 10
million, where a peer's call takes up to a second, only SGD, momentum and Adam are measured, or all
with `--full`.
"""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import numpy as np

from .. import optimizers
from ..shared.window import aligned
from .peers import keras_on_tensorflow
from .rows import row
from .timing import copy_bandwidth, interleaved

SIZES = (100_000, 1_200_000)
LARGE, AT_LARGE = 10_000_000, ("sgd", "momentum", "adam")


def rows(seconds: float, full: bool) -> list[dict]:
    """Return one row per rule, size and peer; peers that can't be imported are left out."""
    bandwidth = copy_bandwidth()
    large = optimizers.NAMES if full else AT_LARGE
    pairs = [(name, n) for name in optimizers.NAMES for n in SIZES] + [(x, LARGE) for x in large]
    found = []
    for name, n in pairs:
        peers = {peer: make(name, n) for peer, make in PEERS.items()}
        peers = {peer: update for peer, update in peers.items() if update}
        if not peers:
            continue
        calls = [our_update(name, n), *peers.values()]
        ours, *theirs = interleaved(calls, seconds=seconds / len(pairs)).T
        bytes_moved = moved(name) * 4 * n
        for peer, times in zip(peers, theirs, strict=True):
            size = {"parameters": n}
            found.append(row("update", 1, size, name, ours, peer, times, bytes_moved, bandwidth))
    return found


def moved(name: str) -> int:
    """Floats read and written per parameter."""
    rule = optimizers.get(name)
    once = 3 + 2 * rule.slots  # w is read and written, as are running averages; g is read
    return once + {"lars": 2, "lamb": 3}.get(name, 0)  # the first pass, less what it saves


def our_update(name: str, n: int) -> Callable[[], None]:
    rule = optimizers.get(name)
    w, g = aligned(n, np.float32), aligned(n, np.float32)
    w[:], g[:] = 1, 1e-3
    state = rule.init(n, segments=[0])
    return lambda: rule.update(w, g, state)


def numpy_update(name: str, n: int) -> Callable[[], None] | None:
    """The rule as NumPy users write it: one pass over memory per operation."""
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


def keras_update(name: str, n: int, xla: bool = False) -> Callable[[], None] | None:
    """Keras's own optimizer in a compiled graph, on one thread; of rules by element and layer.

    XLA fuses it; that is off by default, and measured for Adam only, as compiling takes long.
    """
    rule = optimizers.get(name)
    others = name == "lars" or rule.whole or rule.of_model or rule.shows
    left_out = others or (xla and name != "adam")
    if left_out or (modules := keras_on_tensorflow()) is None:
        return None
    keras, tf = modules
    kind = {"LAMB": "Lamb"}.get(type(rule).__name__, type(rule).__name__)
    theirs = getattr(keras.optimizers, kind)(**asdict(rule))
    w = keras.Variable(np.ones(n, np.float32))
    g = tf.constant(np.full(n, 1e-3, np.float32))
    theirs.build([w])
    return tf.function(lambda: theirs.apply([g], [w]), jit_compile=xla)


PEERS = {
    "numpy": numpy_update,
    "keras": keras_update,
    "keras, XLA": partial(keras_update, xla=True),
}
