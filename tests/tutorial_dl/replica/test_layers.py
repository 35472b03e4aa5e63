"""Products that are added to a gradient in place, with SciPy's BLAS and without."""

import contextlib
import sys
import threading
import time

import numpy as np
import pytest

from tutorial_dl.replica import layers

RANDOM = np.random.default_rng(2)
X, Y, OUT = (RANDOM.integers(-9, 10, shape) for shape in ((5, 3), (5, 4), (3, 4)))
EXACT = OUT + np.array([[sum(X[r, i] * Y[r, o] for r in range(5)) for o in range(4)]
                        for i in range(3)])  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("scipy", [True, False])
def test_a_product_is_added_where_the_gradient_lies(monkeypatch, dtype, scipy):
    if scipy:
        assert layers._gemm(np.dtype(dtype).char) is not None
    else:
        monkeypatch.setattr(layers, "_gemm", lambda kind: None)
    memory = np.full(20, 7, dtype)
    out = memory[4:16].reshape(3, 4)  # within a flat vector, as in a replica
    out[:] = OUT
    layers.add_product(out, X.astype(dtype), Y.astype(dtype))
    np.testing.assert_array_equal(out, EXACT)  # whole numbers: exact
    assert (memory[[0, 1, 2, 3, 16, 17, 18, 19]] == 7).all()


def test_memory_that_blas_does_not_take_is_added_too():
    wide = np.zeros((5, 8), "f4")
    wide[:, ::2] = Y
    for out, x, y in (
        (OUT.astype("f4"), X.astype("f4"), wide[:, ::2]),
        (OUT.astype("f4"), np.asfortranarray(X, "f4"), Y.astype("f8")),
        (np.asfortranarray(OUT, "f8"), X.astype("f8"), Y.astype("f8")),
        (OUT.astype("f4"), X[:0].astype("f4"), Y[:0].astype("f4")),
    ):
        expected = EXACT if len(x) else OUT
        layers.add_product(out, x, y)
        np.testing.assert_array_equal(out, expected)


def test_a_gradient_in_memory_that_blas_does_not_take_is_not_lost():
    odd = np.zeros(12 * 4 + 1, np.uint8)[1:].view("f4").reshape(3, 4)  # not aligned
    swapped = np.zeros((3, 4), ">f4")
    for out in (odd, swapped):
        out[:] = OUT
        layers.add_product(out, X.astype(out.dtype), Y.astype(out.dtype))
        np.testing.assert_array_equal(out, EXACT)
    fixed = OUT.astype("f4")
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        layers.add_product(fixed, X.astype("f4"), Y.astype("f4"))


@contextlib.contextmanager
def switching_never():
    """Meanwhile a thread keeps the interpreter until it gives it up itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_other_threads_run_during_a_product():
    """A product of some 50 ms: whoever waits for the interpreter gets it meanwhile."""
    x, stop, ticks = np.ones((1500, 1500), "f4"), threading.Event(), []

    def tick():
        while not stop.is_set():
            ticks.append(None)
            time.sleep(0)

    out = np.zeros_like(x)
    layers.add_product(out, x, x)  # loads BLAS
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        while not ticks:
            pass
        before = len(ticks)
        with switching_never():
            layers.add_product(out, x, x)
            during = len(ticks) - before
    finally:
        stop.set()
        thread.join()
    assert during > 0 and out[0, 0] == 2 * 1500
