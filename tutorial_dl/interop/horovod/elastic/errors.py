"""The errors of elastic training, by the names that Horovod gives them, and when it ends."""

from numba_kernels.errors import TeamError

LEAST = "TUTORIAL_DL_MIN_NP"  # the number of ranks that must be left, set by --min-np

# A collective failed, because another rank did. Scripts raise it, too.
HorovodInternalError = TeamError


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks regroup without going back to the last commit. Nothing here raises it; scripts may.

    Args:
        skip_sync: do not send rank 0's state to the others afterwards.
    """

    def __init__(self, skip_sync: bool = False):
        super().__init__("ranks were asked to regroup")
        self.skip_sync = skip_sync
