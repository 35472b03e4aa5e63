"""`events`: particle collisions of three classes as sequences, the input of MPI-Learn's LSTM.

collisions.py defines the classes, particles.py turns a collision into hundreds of particles.
"""

from __future__ import annotations

import numpy as np

from tutorial_dl.data.dataset import Data, Dataset

CHUNK = 500  # events generated at once


def events(n: int = 2000, particles: int = 338, seed: int = 0, soft: float = 40) -> Dataset:
    """Generate `n` collisions for training, and a quarter as many others for validation.

    Args:
        n: Number of training events.
        particles: Length of an event's sequence.
        seed: Seed of all random numbers.
        soft: Mean number of particles that the rest of the protons and other collisions add to an
            event; most are too slow to be seen. With 40, about 35 particles are seen in all; with
            2000, all 338 places are filled and the classes are harder to learn.

    Returns:
        Dataset of inputs float32 (n, particles, 20) and targets int64 (n,): 0 QCD, 1 W + jets,
        2 ttbar, equally many of each (give or take one). A particle's 20 numbers are
        `particles.FEATURES`: energy and momentum (x, y, z, transverse), all in units of 10 GeV;
        pseudorapidity; azimuth; log10 of the transverse momentum in GeV; origin (x, y, z) in cm
        from the collision; sums of transverse momentum within 0.3 around it, of charged hadrons,
        neutral hadrons and photons; charge; and five numbers that are 1 or 0 for its kind.
        Particles are sorted by falling transverse momentum; unused places hold zeros.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if particles < 1:
        raise ValueError(f"particles must be at least 1, got {particles}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if not soft >= 0:
        raise ValueError(f"soft must be at least 0, got {soft}")
    counts = (n, max(1, n // 4))
    parts = [_part(count, particles, (seed, i), soft) for i, count in enumerate(counts)]
    return Dataset("events", *parts, classes=3)


def _part(n: int, places: int, seed: tuple[int, int], soft: float) -> Data:
    from tutorial_dl.data.collisions import hard_process
    from tutorial_dl.data.particles import FEATURES, measured, produced, sequences

    labels = np.random.default_rng(seed).permutation(np.arange(n) % 3)
    inputs = np.empty((n, places, len(FEATURES)), np.float32)
    for first in range(0, n, CHUNK):
        here = slice(first, first + CHUNK)
        random = np.random.default_rng((*seed, 1 + first))
        flying = produced(hard_process(labels[here], random), soft, random)
        seen = measured(flying, random)
        inputs[here] = sequences(seen, len(labels[here]), places)
    return Data.of(inputs, labels)
