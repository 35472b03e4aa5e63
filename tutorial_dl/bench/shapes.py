"""The three networks on which steps are measured; this file imports no library.

An MLP computes little per weight, so a step shows the cost of reducing weights; a CNN and an LSTM
compute more per weight. The LSTM is that of MPI-Learn's benchmark: sequences of 338 particles.
"""

from collections.abc import Iterator
from dataclasses import dataclass

CLASSES = 10


@dataclass(frozen=True)
class Network:
    """A network: shape of one sample, and number of samples per rank and step."""

    name: str
    shape: tuple[int, ...]
    samples: int
    classes: int = CLASSES

    def build(self, keras):
        """The network in Keras, not compiled; its outputs are logits."""
        dense, conv = keras.layers.Dense, keras.layers.Conv2D
        hidden = {
            "mlp": lambda: [dense(512, "relu"), dense(512, "relu")],
            "cnn": lambda: [
                conv(32, 3, activation="relu"),
                conv(64, 3, activation="relu"),
                keras.layers.MaxPooling2D(2),
                keras.layers.Flatten(),
                dense(128, "relu"),
            ],
            "lstm": lambda: [keras.layers.Masking(), keras.layers.LSTM(20)],
        }[self.name]()
        return keras.Sequential([keras.Input(self.shape), *hidden, dense(self.classes)])

    def batches(self, count: int, seed: int) -> Iterator[tuple]:
        """`count` batches of random numbers: inputs (samples, *shape) float32, labels int64."""
        import numpy as np

        random = np.random.default_rng(seed)
        for _ in range(count):
            x = random.random((self.samples, *self.shape), np.float32)
            yield x, random.integers(0, self.classes, self.samples)


NETWORKS = {
    "mlp": Network("mlp", (784,), 32),
    "cnn": Network("cnn", (28, 28, 1), 32),
    "lstm": Network("lstm", (338, 20), 100, 3),
}
