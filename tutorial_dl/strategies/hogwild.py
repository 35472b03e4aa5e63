"""Hogwild: no master, no locks; all ranks of a node update one copy of the weights at once.

    rank i, repeatedly:   g <- gradient(w, a batch)
                          w <- update(w, g)            in place, while other ranks write there too

No rank waits for another. A rank may read weights while others change them, and when two ranks
write the same number at the same time, one of the two changes may be lost. For small steps that
does little harm. Niu, Recht, Re, Wright, Hogwild!, NIPS 2011, show it for sparse gradients, which
seldom touch the same weights; a network's gradients are dense, but it works in practice, with about
the staleness of Downpour SGD. Each rank keeps its own optimizer state.
"""

from types import SimpleNamespace

import numpy as np

from numba_kernels.optimizers import Optimizer
from numba_kernels.optimizers.clipping import clip_by_norm
from numba_kernels.shared.window import aligned
from numba_kernels.spans import span
from numba_kernels.team.team import Team

from ..replica.base import Batch, Replica
from .base import OneModel


class Hogwild(OneModel):
    """Hogwild: all ranks of `team` train on one copy of the weights, so they must share memory."""

    def check_team(self, team: Team) -> None:
        if not team.single_node or not team.shared:
            raise ValueError(
                f"strategy 'hogwild' needs ranks that share memory, got {team.size} ranks on "
                f"{len(team.nodes)} nodes; 'downpour' works across nodes"
            )

    updates_a_step = property(lambda self: self.team.size)
    settings = property(lambda self: {"ranks": self.team.size})
    shares_batches = False

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        if replica.traits.constrained:
            raise ValueError(
                "strategy 'hogwild' can't keep a model's constraints, as ranks write at any "
                "time; 'synchronous' and 'downpour' keep them"
            )
        self.take(replica)
        self.check_optimizer(optimizer)
        self.replica, self.clip_norm = replica, clip_norm
        n, dtype = replica.parameters.size, replica.parameters.dtype
        self.team.broadcast(replica.parameters)
        own = replica.parameters.copy()
        common = self.team.empty(n, dtype, common=True)
        replica.place(common, aligned(n, dtype))  # all ranks copy equal weights there
        self.share_state()
        state = optimizer.init(n, dtype, replica.segments)
        self.update = SimpleNamespace(optimizer=optimizer, state=state, mine=slice(0, n))
        self.team.barrier()
        replica.parameters[:] = own
        self.team.barrier()

    def step(self, batch: Batch) -> tuple[float, int]:
        """One update by this rank; returns its own samples' mean loss, and their number."""
        loss, samples = self.begin(batch)
        if self.loss_scale is not None:
            self.loss_scale.update(finite=self._finite)
            if not self._finite:
                return (loss if np.isfinite(loss) else 0.0), samples
        if samples:
            with span("update"):
                if self.clip_norm is not None:
                    clip_by_norm(self.replica.gradient, self.clip_norm)
                update = self.update
                update.optimizer.update(
                    self.replica.parameters, self.replica.gradient, update.state
                )
        return loss, samples

    def settle(self) -> None:
        self.team.barrier()

    def total(self, sums: np.ndarray) -> np.ndarray:
        return self.team.allreduce(sums.copy()) if self.team.size > 1 else sums

    def resume(self) -> None:
        """After a failure: give all ranks the statistics of rank 0; the weights are one copy."""
        self.share_state()
        self.settle()

    def save(self) -> tuple[dict, dict, dict]:
        values, vectors, own = super().save()
        return values, vectors, own | self.save_own(values, vectors)

    def restore(self, saved) -> None:
        self.settle()
        self.replica.parameters[:] = saved.vector("parameters", 0, self.replica.parameters.size)
        self.settle()
        self.restore_own(saved)
