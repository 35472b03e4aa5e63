"""Checks of notebook 29, memory."""

import numpy as np

from . import NotYet, call, close, must_have, whole

PARAMETERS, ROOM, DIVIDED, FIXED = 7, 41, 12, 4  # exercise 1: 10^9, GB, bytes per parameter
SEQUENCES = 64  # per rank and update
EACH, LEFT = 3, 25  # GB of activations: of a sequence; that there is room for


def fit(answer) -> str:
    """Exercise 1: the fewest ranks, and the fewest micro-batches."""
    parts = must_have(answer, 2, "two numbers: ranks, and micro-batches")
    ranks, k = whole(parts[0], 1, None, "ranks"), whole(parts[1], 1, None, "micro-batches")
    needs = [PARAMETERS * (FIXED + DIVIDED / n) for n in (ranks, max(1, ranks - 1))]
    if needs[0] > ROOM:
        raise NotYet(f"with ranks = {ranks} a GPU would hold {needs[0]:.1f} GB, and has {ROOM}")
    if needs[1] <= ROOM:
        raise NotYet(f"ranks = {ranks} is enough, but so would be fewer")
    activations = [-(-SEQUENCES // n) * EACH for n in (k, max(1, k - 1))]
    if activations[0] > LEFT:
        raise NotYet(f"m = {k}: a micro-batch's activations take {activations[0]} GB, not {LEFT}")
    if activations[1] <= LEFT:
        raise NotYet(f"m = {k} micro-batches fit, but so would fewer")
    return f"{needs[0]:.0f} GB, and {activations[0]} GB of activations"


def accumulate(answer) -> str:
    """Exercise 2: the gradient of a batch, from k micro-batches."""
    random = np.random.default_rng(29)
    for s, k in ((8, 4), (10, 4), (7, 3), (5, 5), (9, 1)):
        x, sizes = random.normal(size=(s, 3)), []

        def gradient(part, sizes=sizes):
            sizes.append(len(part))
            return part.mean(axis=0)

        found, cut = call(answer, gradient, x, k), np.array_split(x, k)
        means = [part.mean(axis=0) for part in cut]
        hints = {
            "this is the mean of means": np.mean(means, axis=0),
            "this is the sum of the micro-batches' means": np.sum(means, axis=0),
        }
        close(found, x.mean(axis=0), f"the gradient of {s} samples, m = {k}", hints)
        if sorted(sizes) != sorted(map(len, cut)):
            raise NotYet(f"{s} samples, m = {k}: your micro-batches have {sizes} samples")
    return "each micro-batch counts by its samples"
