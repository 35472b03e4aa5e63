"""A training whose steps take a while, so that it can be ended in its middle; what it has saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np

# A step takes SLOW seconds, an environment variable, or 10 ms.
MODEL = """
import os, time
from tutorial_dl.replica import DenseReplica

def build():
    replica = DenseReplica((64, 16, 10), "relu", "cross_entropy", seed=0)
    right = replica.compute_gradient

    def slowly(*arguments, **more):
        time.sleep(float(os.environ.get("SLOW", 0.01)))
        return right(*arguments, **more)

    replica.compute_gradient = slowly
    return replica
"""


def steps_in(folder: Path | str) -> list[int]:
    """The steps of the checkpoints in a folder, which need not exist."""
    return sorted(int(path.name[5:]) for path in Path(folder).glob("step_*"))


def arrays(folder: Path | str, step: int | None = None) -> dict:
    """All arrays of a checkpoint, by default the newest: weights, optimizer, what each rank has."""
    found = {}
    step = steps_in(folder)[-1] if step is None else step
    for path in sorted(Path(folder, f"step_{step:08}").glob("*.npz")):
        with np.load(path) as file:
            found |= {(path.name, name): file[name] for name in file.files}
    return found


def assert_same_bits(ours: dict, theirs: dict) -> None:
    """Raise AssertionError unless all arrays of both checkpoints are equal."""
    assert ours.keys() == theirs.keys() and theirs
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=str(name))
