"""Alternatives that a user might use instead; each is left out if it is not installed."""

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


def importable(name: str):
    """Return the module called `name`, or None if it is missing or can't be loaded."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):
        return None


def keras_on_tensorflow():
    """Return (keras, tensorflow), or None if either is missing."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # this compares CPU code only
    with quiet():
        modules = importable("keras"), importable("tensorflow")
    return None if None in modules else modules


@contextmanager
def quiet() -> Iterator[None]:
    """Discard output to stderr (TensorFlow's start-up messages), unless the body fails."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except BaseException:
            aside.seek(0)
            os.write(stderr, aside.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
