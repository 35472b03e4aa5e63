"""All checks of tutorial_dl.horovod, and shapes of scripts; test_horovod.py runs them on ranks.

Three ranks are no power of two, and can form teams of two and one. They check the collectives, and
the parts of training that depend on this. Two ranks check the rest.
"""

import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import horovod_callbacks
import horovod_collectives
import horovod_elastic
import horovod_networks
import horovod_shapes
import horovod_training
import numpy as np
import pytest
import tensorflow as tf

import tutorial_dl.horovod.tensorflow as hvd

ON_THREE = [
    *horovod_collectives.CHECKS,
    *horovod_elastic.CHECKS,
    horovod_callbacks.loaded_by_rank_0_alone,
    horovod_training.ragged_shards_average_ranks_alike,
    horovod_training.two_networks_of_two_teams,
]
EVERYWHERE = [horovod_training.fit_is_serial_training]
ON_TWO = [
    check
    for check in horovod_callbacks.CHECKS + horovod_training.CHECKS
    if check not in EVERYWHERE + ON_THREE
]


def run():
    """Run the checks for this number of ranks; an error names the check that fails."""
    refuses_places()
    tf.get_logger().setLevel("ERROR")  # no warnings that functions are traced again
    hvd.init()
    for check in [*EVERYWHERE, *(ON_THREE if hvd.size() == 3 else ON_TWO)]:
        with named(check):
            check()
    hvd.shutdown()
    refuses_places()


def refuses_places():
    """Before `init` and after `shutdown` no one has a place."""
    for name in ("", "local_", "cross_"):
        for call in (f"{name}rank", f"{name}size"):
            with pytest.raises(ValueError, match=r"not been initialized: call hvd.init\(\) first"):
                getattr(hvd, call)()


def run_shapes():
    """Run the shapes of scripts on three ranks."""
    tf.get_logger().setLevel("ERROR")
    for shape in horovod_shapes.SHAPES:
        hvd.init()  # each script begins with it
        with named(shape):
            model, losses = shape()
            horovod_networks.equal_everywhere(model)
            part = -(-len(losses) // 3)  # losses of single batches go up and down
            assert np.mean(losses[-part:]) < np.mean(losses[:part]), losses
        hvd.barrier()
        hvd.shutdown()


@contextmanager
def named(check):
    try:
        yield
    except BaseException:
        print(f"{check.__name__} failed on rank {hvd.rank()}:", file=sys.stderr)
        traceback.print_exc()
        raise
