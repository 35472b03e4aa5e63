"""`load`: a dataset by its name on the command line, from a user's function, or from files."""

from typing import Any

from tutorial_dl import user_function
from tutorial_dl.data.built_in import curve, digits, events
from tutorial_dl.data.characters import text
from tutorial_dl.data.dataset import Data, Dataset, classes
from tutorial_dl.data.files import named, paths
from tutorial_dl.data.hdf5_dataset import hdf5, names, share_or_files
from tutorial_dl.data.showers import showers, small_showers
from tutorial_dl.data.streams import is_stream, stream_of

NAMES = {
    "curve": curve, "digits": digits, "events": events, "text": text, "showers": showers,
    "small-showers": small_showers,
}  # fmt: skip


def load(
    spec: Any, features: Any = None, labels: Any = None, validation: Any = None, cache: Any = None
) -> Dataset:
    """Load the dataset that `spec` names.

    Args:
        spec: One of `NAMES`; or "module:function" or "path/to/file.py:function", a function that is
            called without arguments and returns what `dataset_of` takes, where x may be a tuple or
            dict of arrays for a model with several inputs; or HDF5 files as paths joined by commas,
            a pattern, a text file of paths, or a list. A Dataset is returned as it is.
        features, labels, cache: For HDF5 files only; see `hdf5`.
        validation: For HDF5 files, see `hdf5`; for a function, the share that is held out.
    """
    if isinstance(spec, Dataset):
        return spec
    check(spec, features, labels, validation, cache)
    if named(spec):
        given = dict(features=features, labels=labels, validation=validation, cache=cache)
        return hdf5(spec, **{k: v for k, v in given.items() if v is not None})
    if spec in NAMES:
        return NAMES[spec]()
    split = None if validation is None else float(validation)
    return dataset_of(user_function.find(spec, "data")(), spec, split)


def dataset_of(made: object, name: str = "data", split: float | None = None) -> Dataset:
    """Turn what a user has into a Dataset called `name`.

    Args:
        made: A Dataset; arrays for training and validation, ((x, y), (x_val, y_val)), with weights
            of samples ((x, y, w), ...) or without targets ((x, None), ...); or arrays for both,
            (x, y), (x, y, w) or (x, None). Or a stream (streams.py) for training, without
            validation data; or (train, validation), one or both of which are streams.
        split: The share of the samples held out for validation, the last ones, as in Keras's
            `validation_split`; for arrays for both. 0: none, so there are no `val_` columns; None:
            0.2.
    """
    if isinstance(made, Dataset):
        if split is not None:
            raise ValueError(f"dataset '{made.name}' {HAS_ITS_OWN}")
        return made
    if (parts := _streamed(made)) is not None:
        return _of_streams(*parts, name, split)
    try:
        if _of_both(made):
            train, validation = (Data.of(*part) for part in made)
        elif isinstance(made, tuple) and len(made) in (2, 3):
            train, validation = _split(Data.of(*made), SPLIT if split is None else split)
            split = None
        else:
            raise TypeError(f"data '{name}': expected a Dataset or {FORMS}, got {_what(made)}")
    except ValueError as error:
        raise ValueError(f"data '{name}': {error}") from None
    if split is not None:
        raise ValueError(f"data '{name}' {HAS_ITS_OWN}")
    return Dataset(name, train, validation, classes(train, validation))


def _streamed(made: Any) -> tuple[Any, Any] | None:
    """(training, validation) if one of them is a stream."""
    if is_stream(made):
        return made, None
    pair = isinstance(made, tuple | list) and len(made) in (2, 3)
    return tuple(made) if pair and any(map(is_stream, made)) else None


def _of_streams(train: Any, validation: Any, *more: Any) -> Dataset:
    """The Dataset; further arguments: weights, if somebody gave some; name, split."""
    *weights, name, split = more

    def as_data(given: Any, which: str) -> Any:
        if is_stream(given):
            return stream_of(given, f"data '{name}'{which}")
        if isinstance(given, tuple | list) and len(given) in (2, 3):
            return Data.of(*given)
        raise TypeError(
            f"data '{name}': expected (train, validation), each a stream or arrays (x, y), got a "
            f"{type(given).__name__}; the targets of a stream are in its batches (x, y)"
        )

    if split is not None:
        raise ValueError(
            f"data '{name}': validation_split takes samples of arrays: give a stream its own "
            "validation data, (train, validation)"
        )
    if weights:
        as_data(weights[0], "")
        raise TypeError(f"data '{name}': expected (train, validation), got a tuple of 3")
    kept = None if validation is None else as_data(validation, " (validation)")
    return Dataset(name, as_data(train, ""), kept)


def _is_share(value: Any) -> bool:
    try:
        return 0 <= float(value) < 1
    except (TypeError, ValueError):
        return False


SPLIT = 0.2
HAS_ITS_OWN = (
    "has a validation part, so no share can be held out: leave out validation_split (--validation)"
)
FORMS = "((x, y), (x_val, y_val)), streams (train, validation) or (x, y)"


def _of_both(made: object) -> bool:
    """Whether it is ((x, y), (x_val, y_val)), each part perhaps with weights."""

    def has_parts(part: object) -> bool:
        return isinstance(part, tuple | list) and len(part) in (2, 3)

    if not isinstance(made, tuple | list) or len(made) != 2 or not all(map(has_parts, made)):
        return False
    # Two lists of two numbers are x and y. (Tuples of inputs and of targets can't be told apart
    # from two parts: for such models, both parts must be given.)
    return not all(isinstance(one, int | float) for part in made for one in part)


def _what(made: object) -> str:
    if made is None:
        return "None (a function without `return`?)"
    number = f" of {len(made)}" if isinstance(made, (tuple, list, dict)) else ""
    return f"a {type(made).__name__}{number}"


def _split(data: Data, share: float) -> tuple[Data, Data | None]:
    """The first samples, and the last `share` of them; None for a share of 0."""
    if share == 0:
        return data, None
    first = int(len(data) * (1 - share))
    if not 0 < share < 1 or not 0 < first < len(data):
        raise ValueError(
            f"a validation split of {share:g} leaves {first} of {len(data)} samples to train on: "
            "expected a share from 0 to below 1, and at least one sample in each part"
        )
    return data.rows(slice(0, first)), data.rows(slice(first, None))


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
    own = user_function.is_reference(spec) and spec not in NAMES
    given = dict(features=features, labels=labels, cache=cache)
    given |= {} if own else dict(validation=validation)
    for word, value in given.items():
        if value is not None:
            raise ValueError(f"{word} {value!r} is for HDF5 files; data '{spec}' has none")
    if validation is not None and not _is_share(validation):
        raise ValueError(
            f"validation {validation!r}: expected the share of data '{spec}' to hold out, such as "
            "0.2"
        )
    if spec not in NAMES and not own:
        known = ", ".join(sorted(NAMES))
        raise ValueError(
            f"data '{spec}': expected {known}, module:function or path/to/file.py:function, or "
            "HDF5 files (*.h5, *.hdf5, or a list of them, *.txt)"
        )
