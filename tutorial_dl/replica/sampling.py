"""Sampling from a model that predicts the next token: one token after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tutorial_dl.replica.base import Replica


def tokens(
    replica: Replica,
    start: Sequence[int],
    count: int,
    positions: int,
    temperature: float = 1.0,
    seed: int = 0,
) -> Iterator[int]:
    """Yield `count` tokens, each drawn from what the model predicts after those before it.

    Args:
        replica: Its `predict` of tokens (1, positions) gives probabilities (1, positions, k), and
            those at a position must not depend on later tokens (causal attention).
        start: The first tokens, at least one; they are not yielded.
        count: How many to draw.
        positions: As many of the last tokens the model sees.
        temperature: Probabilities p are drawn as p^(1/temperature), normalised: below 1 likely
            tokens become more likely; 0 takes the most likely one.
        seed: Of the draws.
    """
    if not len(start):
        raise ValueError("sampling needs at least one token to start from")
    if not temperature >= 0:
        raise ValueError(f"temperature must be at least 0, got {temperature}")
    random, seen = np.random.default_rng(seed), [int(t) for t in start]
    for _ in range(count):
        window = seen[-positions:]
        x = np.zeros((1, positions), np.int64)  # what comes after the window changes nothing
        x[0, : len(window)] = window
        p = np.asarray(replica.predict(x)[0, len(window) - 1], np.float64)
        if temperature == 0:
            token = int(p.argmax())
        else:
            p = np.log(np.maximum(p, 1e-300))
            p = np.exp((p - p.max()) / temperature)  # the largest is 1, so the sum is never 0
            token = int(random.choice(p.size, p=p / p.sum()))
        seen.append(token)
        yield token
