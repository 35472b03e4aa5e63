"""Real handwritten digits, 8 by 8 pixels, from scikit-learn's package: nothing to download.

1,797 digits of 43 people, each pixel the number of black points (0 to 16) in a 4 x 4 block of a
32 x 32 scan (Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tutorial_dl.data.dataset import Data, Dataset


def digits() -> Dataset:
    """1,437 digits to train on and 360 kept out; the split is fixed, so that results compare.

    Inputs are float32 (n, 8, 8, 1) in [0, 1], targets int64 (n,), 0 to 9. Sorted by class, every
    fifth digit is kept out, so each class has a fifth of its digits there.
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

    The package keeps them as a table of text. Reading it takes 10 ms; importing scikit-learn to
    have it read takes 700 ms of processor time, on every rank.
    """
    file = Path(find_spec("sklearn").origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():  # another version keeps it elsewhere
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)
