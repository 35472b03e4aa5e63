"""`load`: a dataset by the name that the command line knows it by, or by a user's function."""

from __future__ import annotations

import numpy as np

from tutorial_dl import user_function
from tutorial_dl.data.dataset import Data, Dataset
from tutorial_dl.data.handwritten import digits
from tutorial_dl.data.noisy_curve import curve

NAMES = {"curve": curve, "digits": digits}


def load(spec: str | Dataset) -> Dataset:
    """The dataset that `spec` names.

    Parameters
    ----------
    spec : one of `NAMES`, or "module:function" or "path/to/file.py:function". The function is
        called without arguments and returns a Dataset, or ((x, y), (x_val, y_val)) of arrays, x
        also a tuple or dict of arrays where the model has several inputs. A Dataset is passed on.

    Raises
    ------
    ValueError : no such name, module or function, or arrays of different lengths
    TypeError : the function returned something else
    """
    if isinstance(spec, Dataset):
        return spec
    check(spec)
    if spec in NAMES:
        return NAMES[spec]()
    return dataset_of(user_function.find(spec, "data")(), spec)


def dataset_of(made: object, name: str = "data") -> Dataset:
    """`made` as a Dataset: one, or ((x, y), (x_val, y_val)) of arrays.

    Raises TypeError and ValueError that call it `name`.
    """
    if isinstance(made, Dataset):
        return made
    try:
        (x, y), (x_val, y_val) = made
    except (TypeError, ValueError):
        raise TypeError(
            f"data '{name}': it returned {_describe(made)}; expected a Dataset or "
            "((x, y), (x_val, y_val))"
        ) from None
    try:
        train, validation = Data.of(x, y), Data.of(x_val, y_val)
    except ValueError as error:
        raise ValueError(f"data '{name}': {error}") from None
    return Dataset(name, train, validation, _classes(train, validation))


def check(spec: str) -> None:
    """Raise ValueError where `spec` can be no data's name; loads nothing."""
    if spec not in NAMES and not user_function.is_reference(spec):
        known = ", ".join(sorted(NAMES))
        raise ValueError(
            f"data '{spec}': expected {known}, module:function or path/to/file.py:function"
        )


def _describe(value: object) -> str:
    kind = type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, (tuple, list, dict)) else f"a {kind}"


def _classes(train: Data, validation: Data) -> int | None:
    """Number of classes where targets are labels: one column of integers, none below 0."""
    targets = [train.targets, validation.targets]
    for t in targets:
        labels = isinstance(t, np.ndarray) and t.size == len(t) and t.dtype.kind in "iu"
        if not labels or t.min(initial=0) < 0:
            return None
    return 1 + max(int(t.max(initial=0)) for t in targets)
