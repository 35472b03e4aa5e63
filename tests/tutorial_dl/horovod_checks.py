"""All checks of tutorial_dl.horovod in one process a rank: TensorFlow's import costs ten seconds.

python horovod_checks.py [NAME ...]         of all, or of those named; on every rank
"""

import importlib
import sys
import time
import traceback

sys.path.insert(0, __file__.rsplit("/", 1)[0])

import horovod_collectives
import tensorflow as tf

import tutorial_dl.horovod.tensorflow as hvd


def main(names):
    tf.get_logger().setLevel("ERROR")  # that functions are traced again
    hvd.init()
    checks = list(horovod_collectives.CHECKS)
    for module in ("horovod_callbacks", "horovod_training"):
        checks += importlib.import_module(module).CHECKS
    unknown = set(names) - {check.__name__ for check in checks}
    assert not unknown, unknown
    for check in checks:
        if names and check.__name__ not in names:
            continue
        started = time.monotonic()
        try:
            check()
        except BaseException:
            print(f"{check.__name__} failed on rank {hvd.rank()}:", file=sys.stderr)
            traceback.print_exc()
            raise
        if hvd.rank() == 0:
            print(f"{check.__name__}: {time.monotonic() - started:.1f} s", flush=True)


main(sys.argv[1:])
