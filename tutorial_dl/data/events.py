"""Particle collisions of three classes as sequences: data of the kind that LSTMs were tried on.

collisions.py says what the classes are, particles.py how they come to be hundreds of particles.
"""

from __future__ import annotations

import numpy as np

from tutorial_dl.data.dataset import Data, Dataset

CHUNK = 500  # events that are made at once


def events(n: int = 2000, particles: int = 338, seed: int = 0, soft: float = 40) -> Dataset:
    """`n` collisions to learn from, and a quarter as many others to judge by.

    Args:
        n: Events to train on.
        particles: Places of an event's sequence.
        seed: Of everything.
        soft: Particles that the rest of the protons and other collisions add to an event, on
            average; most are too slow to be seen. With 40, some 35 particles are seen in all; 2000
            fill 338 places, and are harder to learn from.

    Returns:
        Dataset of inputs float32 (n, particles, 20), targets int64 (n,): 0 QCD, 1 W + jets, 2
        ttbar, as many of each (give or take one). A particle's 20 numbers are `particles.FEATURES`:
        energy, momentum (x, y, z, transverse), all in units of 10 GeV, pseudorapidity, azimuth,
        log10 of the transverse momentum in GeV; where it comes from, in cm from the collision;
        transverse momentum around it within 0.3, of charged and neutral hadrons and photons;
        charge; and five that are 1 or 0 for its kind. By falling transverse momentum; places that
        are left hold zeros.
    """
    if n < 1:
        raise ValueError(f"n {n}: expected at least 1 event")
    if particles < 1:
        raise ValueError(f"particles {particles}: expected at least 1 place")
    if seed < 0:
        raise ValueError(f"seed {seed}: expected 0 or more")
    if not soft >= 0:
        raise ValueError(f"soft {soft}: expected a number of particles, 0 or more")
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
