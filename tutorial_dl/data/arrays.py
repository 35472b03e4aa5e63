"""From what users have (lists, DataFrames, tensors) to arrays; if that fails, one line says why."""

from typing import Any

import numpy as np

CHUNK = 1 << 22  # elements that are looked at together
REAL = bool, int, float, np.bool_, np.integer, np.floating
PAD = "all samples need one shape: pad them (keras.utils.pad_sequences)"


def array_of(values: Any, name: str, words: bool = False) -> np.ndarray:
    """The array of `values`, samples first. `name` is for messages; `words`: text may be in it.

    Raises:
        ValueError: If it is not an array of numbers: ragged, text, or missing values.

    Example:
        >>> array_of([[1, 2], [3]], "inputs")
        Traceback (most recent call last):
        ValueError: inputs[1] has length 1, inputs[0] has 2: all samples need one shape: \
pad them (keras.utils.pad_sequences)
    """
    try:
        array = np.asarray(values)
    except ValueError:  # ragged
        raise ValueError(f"{name}{_uneven(values, name)}: {PAD}") from None
    if words and array.dtype == object:  # text from pandas or TensorFlow
        array = _of_text(array)
    kinds = set(map(type, array.flat)) if array.dtype == object else set()
    if kinds and all(issubclass(kind, REAL) for kind in kinds):
        array = array.astype(float)  # a DataFrame with columns of bool beside others
    if array.dtype.kind == "U" and words:
        return array
    if array.dtype == object and array.ndim and len(array):
        raise ValueError(f"{name}{_odd_one(values, array)}")
    if array.dtype.kind == "c":
        raise ValueError(f"{name} has complex numbers: expected real ones, such as |z| and arg z")
    if array.dtype.kind in "USO" or array.ndim == 0:
        if array.ndim and array.dtype.kind in "US":
            raise ValueError(f"{name}{_text(array)}")
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}: expected an array of numbers, "
            "samples first"
        )
    return array


def not_finite(array: np.ndarray) -> tuple[int, ...] | None:
    """The index of the first NaN or infinity in an array, or None."""
    if array.dtype.kind not in "fc" or array.dtype.itemsize < 2:
        return None
    samples = max(1, CHUNK // max(1, array[:1].size))
    for start in range(0, len(array), samples):
        finite = np.isfinite(array[start : start + samples])
        if not finite.all():
            sample, *rest = np.unravel_index(int(np.argmin(finite)), finite.shape)
            return (start + int(sample), *map(int, rest))
    return None


def _of_text(array: np.ndarray) -> np.ndarray:
    """An array of objects as an array of text, if they are all str or bytes."""
    if not array.size or not set(map(type, array.flat)) <= {str, bytes}:
        return array
    texts = [one.decode() if isinstance(one, bytes) else one for one in array.flat]
    return np.array(texts).reshape(array.shape)


def _uneven(values: Any, name: str) -> str:
    """In words: the first sample that has another length than sample 0."""
    lengths = [len(one) if hasattr(one, "__len__") else 1 for one in values]
    for i, length in enumerate(lengths):
        if length != lengths[0]:
            return f"[{i}] has length {length}, {name}[0] has {lengths[0]}"
    return " is ragged"


def _odd_one(values: Any, array: np.ndarray) -> str:
    """In words: what is no number in an array of objects."""
    columns = list(getattr(values, "columns", ()))  # of a DataFrame
    for place in np.ndindex(array.shape):
        one = array[place]
        if isinstance(one, str) or one is None or not np.isscalar(one):
            where = f"[{', '.join(map(str, place))}]"
            if columns and len(place) == 2:
                where = f", column {str(columns[place[1]])!r}, row {place[0]}"
            if isinstance(one, str):
                return f"{where} is the text {one[:20]!r}: expected a number"
            if one is not None and hasattr(one, "__len__"):
                return f" has samples of different shapes: {PAD}"
            return f"{where} is {one if one is None else type(one).__name__}: expected a number"
    return f" is {array.dtype}: expected an array of numbers, samples first"


def _text(array: np.ndarray) -> str:
    one = str(array.reshape(-1)[0])[:20] if array.size else ""
    return (
        f" is text, such as {one!r}: expected numbers; for class labels, "
        "names, y = np.unique(y, return_inverse=True)"
    )
