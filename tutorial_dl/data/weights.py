"""Weights of samples, from weights of classes."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tutorial_dl.data.dataset import Batch, Data


def by_class(data: Data, weights: Mapping[int, float] | str) -> Data:
    """`data` with a weight for each sample, that of its class.

    The loss of a batch is then (1 / n) sum_i w_i l_i, as in Keras's `fit(class_weight=...)`.

    Args:
        data: In memory, with one array of targets: labels, or one-hot rows.
        weights: Class -> weight, also of classes that no sample has; other classes have 1. Weights
            that samples have already are multiplied by them. "balanced": n / (classes * samples of
            the class), so that all classes count alike.

    Raises:
        ValueError: If the targets are no classes, or a weight is none.
    """
    if not isinstance(data, Data) or isinstance(data.targets, tuple | dict):
        raise ValueError("class_weight needs data in memory with one array of targets")
    if isinstance(weights, str):
        if weights != "balanced":
            raise ValueError(
                f"class_weight must be weights by class or 'balanced', got {weights!r}"
            )
        found, counts = np.unique(labels := _labels(data.targets), return_counts=True)
        weights = dict(zip(found.tolist(), len(labels) / (len(found) * counts), strict=True))
    _check(weights)
    own = () if data.weights is None else (data.weights,)
    return replace(data, weights=of_batch((data.inputs, data.targets, *own), weights)[2])


def of_batch(batch: Batch, weights: Mapping[int, float]) -> Batch:
    """One batch of a stream, with the weights of its samples' classes; see `by_class`."""
    inputs, targets, *own = batch
    if isinstance(targets, tuple | dict):
        raise ValueError("class_weight needs one array of targets")
    found, where = np.unique(_labels(targets), return_inverse=True)
    of_class = np.array([weights.get(one, 1.0) for one in found.tolist()], np.float32)
    made = of_class[where.ravel()]
    return inputs, targets, made * own[0] if own else made


def check_for_streams(weights: Mapping[int, float] | str) -> None:
    """Raise ValueError for weights of classes that can't be had batch by batch."""
    if not isinstance(weights, Mapping):
        raise ValueError(
            f"class_weight must be weights by class for a stream, such as {{0: 1.0, 1: 5.0}}, got "
            f"{weights!r}: the numbers of samples are not known"
        )
    _check(weights)


def _check(weights: Mapping[int, float]) -> None:
    of_class = np.array(list(weights.values()), float)
    if not (np.isfinite(of_class).all() and (of_class >= 0).all()):
        raise ValueError("class_weight must be finite and at least 0")


def _labels(targets: np.ndarray) -> np.ndarray:
    """The class of each sample, int64 (n,)."""
    if targets.ndim == 2 and targets.shape[1] > 1:
        rows = ((targets == 0) | (targets == 1)).all() and (targets.sum(axis=1) == 1).all()
        if rows:  # one-hot
            return targets.argmax(axis=1)
    labels = targets.reshape(len(targets), -1)
    if labels.shape[1] != 1 or not np.array_equal(labels, np.round(labels)):
        raise ValueError(
            "class_weight needs class labels or one-hot rows as targets, got "
            f"{targets.dtype} {targets.shape}"
        )
    return labels[:, 0].astype(np.int64)
