"""From an element of a user's stream to a batch: x, (x,), (x, y) or (x, y, w), as in `fit`."""

from typing import Any

import numpy as np

from tutorial_dl.data.arrays import array_of, not_finite
from tutorial_dl.data.dataset import Batch, by_name, each_array

PARTS = "inputs", "targets", "weights"


def batch_of(element: Any) -> Batch:
    """The batch that an element is: (inputs, targets) or (inputs, targets, weights).

    Text becomes an array of bytes objects, as TensorFlow has it.

    Raises:
        ValueError: If it has another form, or a NaN or an infinity.
    """
    element = tuple(element) if isinstance(element, list) else element
    element = element if isinstance(element, tuple) else (element,)
    if not 1 <= len(element) <= 3:
        raise ValueError(
            f"it has {len(element)} parts: expected x, (x, y) or (x, y, weights); several inputs "
            "are a tuple or dict x"
        )
    parts = [_arrays(part, what) for part, what in zip(element, PARTS, strict=False)]
    if isinstance(parts[0], tuple | dict) and not parts[0]:
        raise ValueError("it has no inputs: expected x, (x, y) or (x, y, weights)")
    while len(parts) < 2:
        parts.append(())
    if len(parts) == 3 and isinstance(parts[2], tuple) and not parts[2]:
        parts.pop()
    named = {}
    for part, what in zip(parts, PARTS, strict=False):
        named |= by_name(part, what)
    if len({len(a) for a in named.values()}) != 1:
        have = ", ".join(f"{name} {len(a)}" for name, a in named.items())
        raise ValueError(f"it has arrays of different numbers of samples: {have}")
    if samples_of(parts) == 0:
        raise ValueError("it has no samples")
    for name, array in named.items():
        if array.dtype != object and (place := not_finite(array)) is not None:
            raise ValueError(f"{name}[{', '.join(map(str, place))}] is {array[place]}")
    return tuple(parts)


def samples_of(batch: Batch) -> int:
    return len(next(iter(by_name(batch[0]).values())))


def share_of(batch: Batch, samples: slice) -> Batch:
    """The samples of a slice, without a copy."""
    return tuple(each_array(lambda a: a[samples], part) for part in batch)


def _arrays(part: Any, what: str) -> Any:
    """An array, or a tuple or dict of arrays; () for None."""
    if part is None:
        return ()
    if isinstance(part, list) and part and all(getattr(one, "ndim", 0) for one in part):
        part = tuple(part)  # several inputs, as in Keras
    if isinstance(part, dict) and not all(isinstance(name, str) for name in part):
        raise ValueError(f"it has {what} by {list(part)}: expected names")
    made = {name: _array(one, name, what) for name, one in by_name(part, what).items()}
    found = iter(made.values())
    return each_array(lambda one: next(found), part)


def _array(values: Any, name: str, what: str) -> np.ndarray:
    kind = type(values).__name__
    if kind in ("RaggedTensor", "SparseTensor"):
        dense = "x.to_tensor()" if kind == "RaggedTensor" else "tf.sparse.to_dense(x)"
        raise ValueError(f"{name} is a {kind}: expected an array, for example {dense}")
    if type(values).__module__.startswith("torch"):
        values = values.numpy(force=True)
    if not isinstance(values, np.ndarray) and hasattr(values, "__array__"):
        values = np.asarray(values)
    if what == "inputs" and isinstance(values, np.ndarray | list):
        text = _text(values)
        if text is not None:
            return text
    return array_of(values, name, words=False)


def _text(values: Any) -> np.ndarray | None:
    """An array of bytes objects, if all values are text."""
    try:
        array = np.asarray(values)
    except ValueError:  # ragged
        return None
    if array.dtype.kind not in "USO" or array.ndim == 0:
        return None
    flat = [one.encode() if isinstance(one, str) else one for one in array.ravel().tolist()]
    if not all(isinstance(one, bytes) for one in flat):
        return None
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(array.shape)
