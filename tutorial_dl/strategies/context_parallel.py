"""Context parallelism: ranks = D x C, each of which has a part of the sequences of a batch.

    rank (d, c):     g_dc  <- gradient of the mean loss over its positions, of group d's samples
    all ranks:       g     <- average over all D C ranks, weighted by samples; w <- update

All positions count alike and all parts are equal, so the average over ranks is the average over
positions: the update is that of data parallelism. Only the samples are divided among D, not D C
ranks. Liu, Zaharia and Abbeel (ring attention), arXiv 2310.01889.
"""

from numba_kernels.compression import Adasum
from numba_kernels.optimizers import Optimizer

from ..replica.base import Batch, Replica
from .synchronous import Synchronous


class ContextParallel(Synchronous):
    """Trains a replica of a part of the sequences, a ContextReplica or KerasContextReplica.

    Args:
        grid: model_parallel.Grid, with its axis `context`.
        options: Those of Synchronous.

    A checkpoint has the vectors of the whole model, as each rank has; it can be resumed with
    sequences divided among more ranks or fewer, or not at all.
    """

    saved_as = "Synchronous"

    def __init__(self, grid, **options):
        if grid.tensor.size > 1 or grid.pipe.size > 1:
            other = "TensorParallel" if grid.tensor.size > 1 else "Pipelined"
            raise ValueError(f"this grid cuts the model, too: use strategies.{other}(grid)")
        super().__init__(grid.team, **options)
        if isinstance(self.compression, Adasum):
            raise ValueError(
                "adasum does not fit context parallelism: gradients of parts of one sequence are "
                "not those of independent batches"
            )
        self.grid = grid

    @property
    def name(self) -> str:
        return f"context groups of {self.grid.context.size}, {self.grid.data.size} copies"

    @property
    def sharers(self):
        return self.grid.data

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        if not replica.divides_sequences:
            raise ValueError(
                "ContextParallel trains a ContextReplica or KerasContextReplica, got a "
                f"{type(replica).__name__}"
            )
        super().attach(replica, optimizer, clip_norm)

    def resume(self) -> None:
        """After a failure. A rank may have drawn masks for a step that failed. Collective."""
        self.grid.recover()
        super().resume()
        self.grid.agree_on_masks(self.replica)

    def step(self, batch: Batch) -> tuple[float, int]:
        loss, samples = super().step(batch)
        return loss, samples // self.grid.context.size  # each was counted by C ranks
