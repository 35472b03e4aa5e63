"""From an element of a user's stream to a batch: x, (x,), (x, y) or (x, y, w), as in `fit`."""

from typing import Any

import numpy as np

from tutorial_dl.data.arrays import array_of
from tutorial_dl.data.dataset import Batch, arrays_of, by_name, each_array, not_a_number

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
    given = {what: _part(one, what) for what, one in zip(PARTS, element, strict=False)}
    given.setdefault("targets", ())
    made, arrays = arrays_of(given, _array)
    if isinstance(made["inputs"], tuple | dict) and not made["inputs"]:
        raise ValueError("it has no inputs: expected x, (x, y) or (x, y, weights)")
    if isinstance(made.get("weights"), tuple) and not made["weights"]:
        del made["weights"]
    batch = tuple(made[what] for what in PARTS if what in made)
    if samples_of(batch) == 0:
        raise ValueError("it has no samples")
    if found := not_a_number(arrays):
        raise ValueError(found)
    return batch


def samples_of(batch: Batch) -> int:
    return len(next(iter(by_name(batch[0]).values())))


def share_of(batch: Batch, samples: slice) -> Batch:
    """The samples of a slice, without a copy."""
    return tuple(each_array(lambda a: a[samples], part) for part in batch)


def _part(part: Any, what: str) -> Any:
    """One part of an element; () for None, and a tuple for a list of arrays, as in Keras."""
    if part is None:
        return ()
    if isinstance(part, dict) and not all(isinstance(name, str) for name in part):
        raise ValueError(f"it has {what} by {list(part)}: expected names")
    several = isinstance(part, list) and part and all(getattr(one, "ndim", 0) for one in part)
    return tuple(part) if several else part


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
