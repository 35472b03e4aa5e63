"""Quality of generated images of classes, by a classifier of real ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_kernels.optimizers import Adam
from tutorial_dl.data import Batches, Dataset
from tutorial_dl.quality.frechet import extrapolated
from tutorial_dl.replica import DenseReplica

EPOCHS, BATCH, HIDDEN = 40, 32, (128, 64)


class Judge:
    """A dense network that is trained on a dataset of real images, by `train`.

    Attributes:
        accuracy: Of real images of the validation part.
    """

    def __init__(self, replica: DenseReplica, dataset: Dataset) -> None:
        self.replica, self.dataset = replica, dataset
        whole = Batches(dataset.validation, 512, shuffle=False).epoch()
        self.accuracy = replica.evaluate(whole)["accuracy"]

    def features(self, images: np.ndarray) -> np.ndarray:
        """The activations of the last hidden layer, (n, 64)."""
        kept = DenseReplica((self.replica.sizes[0], *HIDDEN), loss="mse")
        n = kept.parameters.size  # of the layers up to it; the last one has no activation
        kept.parameters[:] = self.replica.parameters[:n]
        return np.maximum(kept.predict(images), 0)

    def counts(self, images: np.ndarray, asked: np.ndarray) -> dict[str, Any]:
        """Of generated images (n, ...) and the classes (n,) that were asked for.

        Returns:
            "accuracy": share of images that it takes for the class asked for; "missing": classes
            asked for of which it finds less than a tenth of those asked for; "classes": number of
            images that it takes for each class, beside "asked".
        """
        classes = self.dataset.classes
        found = self.replica.predict(images).argmax(axis=1)
        counts, of_asked = (np.bincount(of, minlength=classes) for of in (found, asked))
        return {
            "accuracy": float(np.mean(found == asked)),
            "missing": [int(c) for c in np.flatnonzero(counts < 0.1 * of_asked)],
            "classes": counts.tolist(),
            "asked": of_asked.tolist(),
        }

    def report(self, images: np.ndarray, asked: np.ndarray) -> dict[str, Any]:
        """`counts`, and distances, which take a few hundredths of a second.

        Returns:
            Also "frechet": Frechet distance of its features from those of the dataset's validation
            images, and "frechet of data": that of the training images.
        """
        real = self.features(self.dataset.validation.inputs)
        return self.counts(images, asked) | {
            "frechet": extrapolated(self.features(images), real),
            "frechet of data": extrapolated(self.features(self.dataset.train.inputs), real),
        }


def judge(dataset: Dataset, seed: int = 0) -> Judge:
    """Train a Judge on the dataset, in this process alone; takes a second for the digits."""
    if dataset.classes is None or dataset.validation is None:
        raise ValueError(f"dataset '{dataset.name}': a judge needs classes and validation data")
    inputs = int(np.prod(dataset.inputs_shape))
    replica = DenseReplica((inputs, *HIDDEN, dataset.classes), seed=seed)
    adam = Adam(learning_rate=1e-3)
    state = adam.init(replica.parameters.size, replica.parameters.dtype)
    batches = Batches(dataset.train, BATCH, seed)
    for epoch in range(EPOCHS):
        for batch in batches.epoch(epoch):
            replica.compute_gradient(batch)
            adam.update(replica.parameters, replica.gradient, state)
    return Judge(replica, dataset)
