"""Objects as vectors of numbers. Functions are pickled by value, also those of a notebook."""

from __future__ import annotations

import io

import numpy as np

try:
    import cloudpickle
except ImportError:  # joblib, on which scikit-learn builds, brings it along in one way or another
    from joblib.externals import cloudpickle


def dumps(obj) -> np.ndarray:
    """int64 vector: the number of bytes, then the bytes, filled up with zeros."""
    data = cloudpickle.dumps(obj)
    padded = np.frombuffer(data + bytes(-len(data) % 8), np.int64)
    return np.concatenate([[len(data)], padded])


def loads(numbers: np.ndarray):
    """The object again. Like any pickle: only from ranks of one's own job."""
    data = np.ascontiguousarray(numbers[1:]).tobytes()[: int(numbers[0])]
    return cloudpickle.load(io.BytesIO(data))
