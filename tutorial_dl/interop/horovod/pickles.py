"""Python objects as int64 vectors. Functions, also from a notebook, are pickled by value."""

import numpy as np

try:
    import cloudpickle
except ImportError:  # joblib, a dependency of scikit-learn, includes a copy
    from joblib.externals import cloudpickle


def dumps(obj) -> np.ndarray:
    """Pickle `obj` to an int64 vector, padded with zeros."""
    data = cloudpickle.dumps(obj)
    return np.frombuffer(data + bytes(-len(data) % 8), np.int64)


def loads(numbers: np.ndarray):
    """Unpickle the object. As with any pickle, accept only data from ranks of the same job."""
    return cloudpickle.loads(numbers)


def from_root(obj, wire, root: int, name: str | None = None):
    """Return the `obj` of rank `root` of the wire's team. Collective."""
    data = dumps(obj) if wire.team.rank == root else np.zeros(0, np.int64)
    length = wire.broadcast([np.array([data.size], np.int64)], root, name)[0][0]
    if wire.team.rank != root:
        data = np.zeros(length, np.int64)
    data = wire.broadcast([data], root, name)[0]
    return obj if wire.team.rank == root else loads(data)
