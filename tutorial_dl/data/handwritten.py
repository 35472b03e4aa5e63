"""`digits`: real handwritten digits, 8 by 8 pixels, from scikit-learn's package; no download.

1,797 digits of 43 people, each pixel the number of black points (0 to 16) in a 4 x 4 block of a
32 x 32 scan (Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tutorial_dl.data.dataset import Data, Dataset


def digits() -> Dataset:
    """Load 1,437 training and 360 validation digits; the split is fixed, so results compare.

    With the digits sorted by class, every fifth one goes to the validation set, which so holds a
    fifth of each class.

    Returns:
        Dataset of inputs float32 (n, 8, 8, 1) in [0, 1] and targets int64 (n,), 0 to 9.
    """
    images, labels = _table()
    inputs = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    targets = labels.astype(np.int64)
    by_class = np.argsort(targets, kind="stable")
    kept_out = np.zeros(len(targets), dtype=bool)
    kept_out[by_class[::5]] = True
    train, validation = (Data.of(inputs[s], targets[s]) for s in (~kept_out, kept_out))
    return Dataset("digits", train, validation, classes=10)


def _table() -> tuple[np.ndarray, np.ndarray]:
    """Pixels (1797, 64), 0 to 16, and labels (1797,).

    The package stores them as a text table. Reading it directly takes 10 ms; importing
    scikit-learn to read it takes 700 ms of processor time on every rank.
    """
    file = Path(find_spec("sklearn").origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():  # another version of scikit-learn may store it elsewhere
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)
