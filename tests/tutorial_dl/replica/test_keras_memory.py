"""Where the weights of a Keras model lie in memory, and for how long."""

import gc

import numpy as np
import pytest
from keras_networks import IMAGES, MODELS, addresses, build

from numba_kernels.shared.window import aligned
from tutorial_dl import replica

pytestmark = pytest.mark.xdist_group("keras")


@pytest.mark.thorough(but="two_outputs")
@pytest.mark.parametrize("name", MODELS)
def test_weights_lie_in_parameters_wherever_those_are(name):
    model, batch = build(name)
    weights = [v.numpy() for v in model.trainable_variables]
    r = replica.KerasReplica(model)
    for _ in range(3):
        start = r.parameters.ctypes.data
        assert addresses(model) == [start + 4 * s.offset for s in r.segments]
        assert all(s.offset % 16 == 0 for s in r.segments)
        for v, w, s in zip(model.trainable_variables, weights, r.segments, strict=True):
            np.testing.assert_array_equal(v.numpy(), w)
            np.testing.assert_array_equal(s.view(r.parameters), w)
        r.compute_gradient(batch)
        r.evaluate([batch])
        gradient = r.gradient.copy()
        n = len(r.parameters)
        new = aligned(n), aligned(n)
        r.place(*new)
        assert r.parameters is new[0] and r.gradient is new[1]
        np.testing.assert_array_equal(r.gradient, gradient)


def owned(n, freed):
    """Memory for n numbers; `freed` gets an item when nothing refers to it any more."""

    class Owner(np.ndarray):
        def __del__(self):
            freed.append(1)

    owner = Owner(4 * n + 64, np.uint8)
    memory = np.ndarray((n,), np.float32, buffer=owner, offset=-owner.ctypes.data % 64)
    assert memory.base is owner
    return memory


@pytest.mark.thorough
def test_memory_lives_as_long_as_tensorflow_looks_at_it():
    """Weights do not change when our reference to the vector is gone and memory is reused."""
    model, batch = build("convolutional")
    r, freed = replica.KerasReplica(model), []
    n = len(r.parameters)
    for step in range(4):
        r.place(owned(n, freed), aligned(n))
        r.compute_gradient(batch)
        gc.collect()
        assert len(freed) == step, "memory left behind by place is freed"
    weights = [v.numpy() for v in model.trainable_variables]
    del r
    gc.collect()
    clutter = [np.full(4 * n + 64, 255, np.uint8) for _ in range(50)]
    assert len(freed) == 3
    for v, w in zip(model.trainable_variables, weights, strict=True):
        np.testing.assert_array_equal(v.numpy(), w)
    model.predict(IMAGES, verbose=0)
    # When the weights lie elsewhere, the memory is freed.
    replica.KerasReplica(model)
    gc.collect()
    assert len(clutter) == 50 and len(freed) == 4


@pytest.mark.thorough(but="assign_add")
@pytest.mark.parametrize("how", ["set_weights", "assign_add", "fit"])
def test_weights_assigned_by_tensorflow_are_noticed(how):
    model, batch = build("convolutional")
    r = replica.KerasReplica(model)
    r.compute_gradient(batch)
    if how == "set_weights":
        model.set_weights([w + 1 for w in model.get_weights()])
    elif how == "assign_add":  # only one of the four
        model.trainable_weights[2].assign_add(np.ones(model.trainable_weights[2].shape))
    else:
        model.fit(*batch, verbose=0)
    with pytest.raises(RuntimeError, match="no longer lie in the replica's parameters") as error:
        for _ in range(len(r.segments)):
            r.compute_gradient(batch)
    assert "\n" not in str(error.value)
    with pytest.raises(RuntimeError, match="no longer lie"):
        r.place(aligned(len(r.parameters)), aligned(len(r.parameters)))
    # The message names this remedy.
    weights = model.get_weights()
    again = replica.KerasReplica(model)
    again.compute_gradient(batch)
    for ours, own in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(ours, own)
