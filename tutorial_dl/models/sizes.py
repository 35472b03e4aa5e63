"""Sizes of a model's input and output for a dataset."""

from math import prod

from tutorial_dl.data import Dataset


def sample_shape(model: str, dataset: Dataset) -> tuple[int, ...]:
    """Shape of one sample; raises ValueError if the dataset has several inputs."""
    shape = dataset.inputs_shape
    if isinstance(shape, dict) or (shape and isinstance(shape[0], tuple)):
        raise ValueError(
            f"model '{model}' has one input: dataset '{dataset.name}' has {len(shape)}; "
            "build a model of your own and name it as module:function"
        )
    return shape


def flat_inputs(model: str, dataset: Dataset) -> int:
    return prod(sample_shape(model, dataset))


def outputs(model: str, dataset: Dataset) -> int:
    """Number of outputs: one per class, or one per number of a target."""
    if dataset.classes:
        return dataset.classes
    targets = dataset.train.targets
    if isinstance(targets, (tuple, dict)):
        raise ValueError(
            f"model '{model}' has one output: dataset '{dataset.name}' has {len(targets)}; "
            "build a model of your own and name it as module:function"
        )
    return prod(targets.shape[1:])


def one_hot(dataset: Dataset) -> bool:
    """Whether targets are one-hot rows (zeros and a single one); checks the first 100 samples."""
    targets = dataset.train.targets
    if isinstance(targets, (tuple, dict)) or targets.ndim != 2 or targets.shape[1] < 2:
        return False
    rows = dataset.train.take(slice(0, 100))[1]
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all())
