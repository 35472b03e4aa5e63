"""Models in numpy (`curve`, `softmax`, `dense`): built in milliseconds, in float32 or float64."""

from tutorial_dl.data import Dataset
from tutorial_dl.models.sizes import flat_inputs, outputs
from tutorial_dl.replica import CurveReplica, DenseReplica, Replica, SoftmaxReplica


def curve(dataset: Dataset, seed: int = 0) -> Replica:
    """A cubic w0 + w1 x + w2 x^2 + w3 x^3, from one number to one number; it starts from w = 0."""
    if flat_inputs("curve", dataset) != 1 or dataset.classes or outputs("curve", dataset) != 1:
        raise ValueError(
            f"model 'curve' maps one number to one number: dataset '{dataset.name}' has "
            f"samples of shape {dataset.inputs_shape}"
            + (f" in {dataset.classes} classes" if dataset.classes else "")
        )
    return CurveReplica(degree=3)


def softmax(dataset: Dataset, seed: int = 0) -> Replica:
    """A linear classifier (softmax regression)."""
    if dataset.classes is None:
        raise ValueError(f"model 'softmax' needs classes: dataset '{dataset.name}' has none")
    return SoftmaxReplica(flat_inputs("softmax", dataset), dataset.classes, seed=seed)


def dense(dataset: Dataset, seed: int = 0) -> Replica:
    """A dense network with two hidden layers: 256 ReLU for classes, 64 tanh for regression."""
    hidden = 256 if dataset.classes else 64
    sizes = (flat_inputs("dense", dataset), hidden, hidden, outputs("dense", dataset))
    if dataset.classes:
        return DenseReplica(sizes, "relu", "cross_entropy", seed=seed)
    return DenseReplica(sizes, "tanh", "mse", seed=seed)
