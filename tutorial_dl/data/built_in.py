"""Datasets that need no files: `curve`, `digits` and `events`.

`curve` is noisy samples of a known function, so that the right answer is known. `digits` is
scikit-learn's handwritten digits, 8 by 8 pixels; no download. `events` is particle collisions of
three classes as sequences, the input of MPI-Learn's LSTM: collisions.py defines the classes,
particles.py turns a collision into hundreds of particles.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tutorial_dl.data.dataset import Data, Dataset

CHUNK = 500  # events generated at once


def cubic(x: np.ndarray) -> np.ndarray:
    """f(x) = 1/2 - x - x^2 + 2 x^3; a cubic model can fit it, with these as best coefficients."""
    return 0.5 + x * (-1 + x * (-1 + 2 * x))


def curve(
    n: int = 200,
    noise: float = 0.1,
    seed: int = 0,
    function: Callable[[np.ndarray], np.ndarray] = cubic,
) -> Dataset:
    """Make `n` samples y = function(x) + noise for training, and `n` others for validation.

    Args:
        n: Samples per part.
        noise: Standard deviation of the normal noise on y; the smallest mean squared error that any
            model can reach is noise^2.
        seed: Seed of x, uniform in [-1, 1], and of the noise.
        function: The function to learn, from arrays (n,) to arrays (n,).

    Returns:
        Dataset of inputs x (n,) and targets y (n,), float64, no classes.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    if not noise >= 0:
        raise ValueError(f"noise must be at least 0, got {noise}")
    random = np.random.default_rng(seed)
    parts = []
    for _ in range(2):
        x = random.uniform(-1, 1, n)
        parts.append(Data.of(x, function(x) + noise * random.standard_normal(n)))
    return Dataset("curve", *parts)


def digits() -> Dataset:
    """Load 1,437 training and 360 validation digits; the split is fixed, so results compare.

    There are digits of 43 people, each pixel the number of black points (0 to 16) in a 4 x 4 block
    of a 32 x 32 scan (Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998).
    With the digits sorted by class, every fifth one goes to the validation set, which so holds a
    fifth of each class.

    Returns:
        Dataset of inputs float32 (n, 8, 8, 1) in [0, 1] and targets int64 (n,), 0 to 9.
    """
    images, labels = _digits()
    inputs = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    targets = labels.astype(np.int64)
    by_class = np.argsort(targets, kind="stable")
    kept_out = np.zeros(len(targets), dtype=bool)
    kept_out[by_class[::5]] = True
    train, validation = (Data.of(inputs[s], targets[s]) for s in (~kept_out, kept_out))
    return Dataset("digits", train, validation, classes=10)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (1797, 64), 0 to 16, and labels (1797,).

    The package stores them as a text table. Reading it directly takes 10 ms; importing
    scikit-learn to read it takes 700 ms of processor time on every rank.
    """
    if (found := find_spec("sklearn")) is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():  # another version of scikit-learn may store it elsewhere
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


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
    for name, value, least in (
        ("n", n, 1), ("particles", particles, 1), ("seed", seed, 0), ("soft", soft, 0)
    ):  # fmt: skip
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    counts = (n, max(1, n // 4))
    parts = [_events(count, particles, (seed, i), soft) for i, count in enumerate(counts)]
    return Dataset("events", *parts, classes=3)


def _events(n: int, places: int, seed: tuple[int, int], soft: float) -> Data:
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
