"""Real Horovod scripts keep running: their shapes (horovod_shapes.py), on three ranks."""

import sys
import traceback
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent


def each_rank():
    sys.path.insert(0, str(HERE))
    import horovod_shapes
    import tensorflow as tf

    import tutorial_dl.horovod.tensorflow.keras as hvd

    tf.get_logger().setLevel("ERROR")  # no warnings that functions are traced again
    for shape in horovod_shapes.SHAPES:
        hvd.init()  # each script begins with it
        try:
            model, losses = shape()
            weights = np.concatenate([w.ravel() for w in model.get_weights()])
            everyone = hvd.allgather(weights[np.newaxis]).numpy()
            assert (everyone == everyone[0]).all()
            part = -(-len(losses) // 3)  # losses of single batches go up and down
            assert np.mean(losses[-part:]) < np.mean(losses[:part]), losses
        except BaseException:
            print(f"{shape.__name__} failed on rank {hvd.rank()}:", file=sys.stderr)
            traceback.print_exc()
            raise
        hvd.barrier()
        hvd.shutdown()


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_scripts(on_ranks):
    on_ranks(3, each_rank, keras=True)
