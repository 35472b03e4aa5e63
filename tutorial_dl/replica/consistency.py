"""Check that all ranks still hold the same weights; cheap enough to do after every epoch.

A strategy that should keep replicas equal can fail to do so without an error: the loss still falls,
for as many different models as there are ranks. So the Trainer checks.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from .base import Replica, Segment


class DriftError(RuntimeError):
    """Ranks that should hold equal weights do not."""


def check_same_weights(team, replica: Replica, segments: Sequence[Segment] | None = None) -> None:
    """Raise DriftError on all ranks, with the first layer that differs, if weights differ by a bit.

    The cost is a checksum of the weights and one allreduce of two numbers per layer.

    Args:
        segments: Those that all ranks of `team` hold; None: all of the replica's.
    """
    segments = replica.segments if segments is None else segments
    if team.size == 1 or not segments:  # none: each weight is on one rank only
        return
    sums = np.array([zlib.crc32(s.view(replica.parameters)) for s in segments], float)
    both = team.allreduce(np.concatenate([sums, -sums]), "max")  # the maximum, and the minimum
    different = np.flatnonzero(both[: sums.size] != -both[sums.size :])
    if different.size:
        layer = segments[different[0]].name
        raise DriftError(
            f"ranks hold different weights, first in layer {layer!r}: something changed them on "
            "one rank only (only the strategy may change weights)"
        )
