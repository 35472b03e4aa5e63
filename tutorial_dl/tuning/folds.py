"""Cross-validation: a dataset's training part, cut into folds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..data import Dataset, Stream


def fold_of(dataset: Dataset, number: int, folds: int, seed: int = 0) -> Dataset:
    """The dataset that is validated on fold `number` of `folds`, and trained on the others.

    The samples are those of the training part, in an order set by `seed`; each class is divided
    evenly. The dataset's own validation part is left out, so that it can test the best set of
    values afterwards. With one fold, the dataset is returned as it is.

    Raises:
        ValueError: If there are more folds than samples, or the data are a stream.
    """
    if folds == 1:
        return dataset
    train = dataset.train
    if isinstance(train, Stream):
        raise ValueError(f"data '{dataset.name}' are a stream, which has no folds: use one fold")
    if not 1 < folds <= len(train):
        raise ValueError(
            f"folds must be from 1 to {len(train)}, the training samples of data "
            f"'{dataset.name}', got {folds}"
        )
    order = np.random.default_rng(seed).permutation(len(train))
    targets = getattr(train, "targets", None)
    if dataset.classes and isinstance(targets, np.ndarray) and targets.size == len(train):
        order = order[np.argsort(targets.reshape(-1)[order], kind="stable")]
    held = np.zeros(len(train), bool)
    held[order[number::folds]] = True
    parts = (type(train)(*train.take(np.flatnonzero(which))) for which in (~held, held))
    name = f"{dataset.name}, fold {number + 1} of {folds}"
    return replace(dataset, name=name, **dict(zip(("train", "validation"), parts, strict=True)))
