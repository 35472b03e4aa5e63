"""Python objects as int64 vectors. Functions, also from a notebook, are pickled by value."""

import io

import numpy as np

try:
    import cloudpickle
except ImportError:  # joblib, a dependency of scikit-learn, includes a copy
    from joblib.externals import cloudpickle


def dumps(obj) -> np.ndarray:
    """Pickle `obj` to an int64 vector: the number of bytes, then the bytes, padded with zeros."""
    data = cloudpickle.dumps(obj)
    padded = np.frombuffer(data + bytes(-len(data) % 8), np.int64)
    return np.concatenate([[len(data)], padded])


def loads(numbers: np.ndarray):
    """Unpickle the object. As with any pickle, accept only data from ranks of the same job."""
    data = np.ascontiguousarray(numbers[1:]).tobytes()[: int(numbers[0])]
    return cloudpickle.load(io.BytesIO(data))
