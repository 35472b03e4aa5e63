"""`load`: a dataset by its name on the command line, from a user's function, or from files."""

from typing import Any

from tutorial_dl import user_function
from tutorial_dl.data.built_in import curve, digits, events
from tutorial_dl.data.dataset import Data, Dataset, classes
from tutorial_dl.data.files import named, paths
from tutorial_dl.data.hdf5_dataset import hdf5, names, share_or_files

NAMES = {"curve": curve, "digits": digits, "events": events}


def load(
    spec: Any, features: Any = None, labels: Any = None, validation: Any = None, cache: Any = None
) -> Dataset:
    """Load the dataset that `spec` names.

    Args:
        spec: One of `NAMES`; or "module:function" or "path/to/file.py:function", a function that is
            called without arguments and returns a Dataset or arrays ((x, y), (x_val, y_val)), where
            x may be a tuple or dict of arrays for a model with several inputs; or HDF5 files as
            paths joined by commas, a pattern, a text file of paths, or a list. A Dataset is
            returned as it is.
        features, labels, validation, cache: For HDF5 files only; see `hdf5`.
    """
    if isinstance(spec, Dataset):
        return spec
    check(spec, features, labels, validation, cache)
    if named(spec):
        given = dict(features=features, labels=labels, validation=validation, cache=cache)
        return hdf5(spec, **{k: v for k, v in given.items() if v is not None})
    if spec in NAMES:
        return NAMES[spec]()
    return dataset_of(user_function.find(spec, "data")(), spec)


def dataset_of(made: object, name: str = "data") -> Dataset:
    """Turn `made`, a Dataset or arrays ((x, y), (x_val, y_val)), into a Dataset called `name`."""
    if isinstance(made, Dataset):
        return made
    try:
        (x, y), (x_val, y_val) = made
    except (TypeError, ValueError):
        what = f"a {type(made).__name__}"
        what += f" of {len(made)}" if isinstance(made, (tuple, list, dict)) else ""
        raise TypeError(
            f"data '{name}': the function returned {what}; expected a Dataset or "
            "((x, y), (x_val, y_val))"
        ) from None
    try:
        train, validation = Data.of(x, y), Data.of(x_val, y_val)
    except ValueError as error:
        raise ValueError(f"data '{name}': {error}") from None
    return Dataset(name, train, validation, classes(train, validation))


def check(
    spec: Any, features: Any = None, labels: Any = None, validation: Any = None, cache: Any = None
) -> None:
    """Raise ValueError if these options can't name data; files are only checked to exist."""
    if named(spec):
        paths(spec)
        for words, what in ((features, "features"), (labels, "labels")):
            if words is not None:
                names(words, what)
        if validation is not None:
            share_or_files(validation)
        return
    given = dict(features=features, labels=labels, validation=validation, cache=cache)
    for word, value in given.items():
        if value is not None:
            raise ValueError(f"{word} {value!r} is for HDF5 files; data '{spec}' has none")
    if spec not in NAMES and not user_function.is_reference(spec):
        known = ", ".join(sorted(NAMES))
        raise ValueError(
            f"data '{spec}': expected {known}, module:function or path/to/file.py:function, or "
            "HDF5 files (*.h5, *.hdf5, or a list of them, *.txt)"
        )
