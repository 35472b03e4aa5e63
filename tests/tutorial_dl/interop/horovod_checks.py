"""All checks of tutorial_dl.horovod; test_horovod.py calls them on every rank.

Three ranks are no power of two, and can form teams of two and one. They check the collectives, and
the parts of training that depend on this. Two ranks check the rest.
"""

import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import horovod_callbacks
import horovod_collectives
import horovod_elastic
import horovod_training
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
    tf.get_logger().setLevel("ERROR")  # no warnings that functions are traced again
    hvd.init()
    for check in [*EVERYWHERE, *(ON_THREE if hvd.size() == 3 else ON_TWO)]:
        try:
            check()
        except BaseException:
            print(f"{check.__name__} failed on rank {hvd.rank()}:", file=sys.stderr)
            traceback.print_exc()
            raise
    hvd.shutdown()
