"""Checks of what elastic training keeps; horovod_checks.py runs them. Losses: test_elastic.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from horovod_networks import network, samples

import tutorial_dl.horovod.tensorflow as hvd
from numba_kernels.errors import PeerError
from tutorial_dl.horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt


def objects():
    """They are copied when kept and when restored; `sync` sends rank 0's as they are."""
    state = hvd.elastic.ObjectState(numbers=[hvd.rank()], step=0)
    state.step = 7 + hvd.rank()
    state.sync()
    assert (state.numbers, state.step) == ([0], 7)
    state.numbers.append(1)
    state.commit()
    for _ in range(2):
        state.numbers.append(2)
        state.restore()
        assert (state.numbers, state.step) == ([0, 1], 7)
    assert issubclass(hvd.elastic.ObjectState, hvd.elastic.State)

    class Counted(hvd.elastic.State):
        def reset(self):
            seen.append("reset")

    seen = []
    state = Counted(lambda obj: obj, lambda: 5)
    state.register_reset_callbacks([lambda: seen.append("first"), lambda: seen.append("second")])
    state.on_reset()
    assert seen == ["reset", "first", "second"]
    for method in (state.save, state.restore, state.sync):
        with pytest.raises(NotImplementedError):
            method()


def variables():
    variable = tf.Variable([1.0 + hvd.rank()])
    state = hvd.elastic.TensorFlowState([variable], step=hvd.rank())
    state.sync()
    assert variable.numpy().tolist() == [1.0] and state.step == 0
    variable.assign([5.0])
    state.step = 3
    state.restore()
    assert variable.numpy().tolist() == [1.0] and state.step == 0
    variable.assign([5.0])
    state.commit()
    variable.assign([6.0])
    state.restore()
    assert variable.numpy().tolist() == [5.0]
    with pytest.raises(ValueError, match="variables must be a list"):
        hvd.elastic.TensorFlowState()


def models():
    """Weights and the optimizer's state are common; seeds and local layers are each rank's own."""
    rank = hvd.rank()
    model = network(seed=rank)
    model = keras.Model(model.inputs, keras.layers.Dropout(0.5, seed=rank)(model.outputs[0]))
    own = model.layers[1]
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.Adam(0.1), local_layers=own)
    model.compile(optimizer, "mse")
    mine = own.kernel.numpy()
    state = hvd.elastic.TensorFlowKerasState(model, epoch=rank)  # builds the optimizer

    def everything():
        return [np.array(v) for v in [*model.variables, *optimizer.variables]]

    def same(before):
        return all((a == b).all() for a, b in zip(before, everything(), strict=True))

    state.sync()
    np.testing.assert_array_equal(own.kernel, mine)
    (last,) = (layer for layer in model.layers[2:] if layer.weights)
    everyone = hvd.allgather(last.kernel[tf.newaxis]).numpy()
    assert (everyone == everyone[0]).all() and state.epoch == 0
    before = everything()
    assert len(optimizer.variables) > 2 * len(model.trainable_variables)
    model.fit(*samples()[1], batch_size=4, verbose=0)
    assert not same(before) and int(optimizer.iterations) > 0
    state.restore()
    assert same(before) and int(optimizer.iterations) == 0
    with pytest.raises(ValueError, match="must be built first"):
        hvd.elastic.TensorFlowKerasState(keras.Sequential([keras.layers.Dense(1)]))
    with pytest.raises(ValueError, match="optimizer is missing"):
        hvd.elastic.TensorFlowKerasState(network())


def errors():
    """Scripts catch a failed collective by Horovod's name."""
    assert HorovodInternalError is hvd.elastic.HorovodInternalError
    assert issubclass(PeerError, HorovodInternalError)
    assert not issubclass(HostsUpdatedInterrupt, HorovodInternalError)
    assert HostsUpdatedInterrupt(True).skip_sync


CHECKS = [objects, variables, models, errors]
