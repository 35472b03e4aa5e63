"""Hogwild: no master, no locks; all ranks of a node update one copy of the weights at once.

    rank i, repeatedly:   g <- gradient(w, a batch)
                          w <- update(w, g)            in place, while other ranks write there too

No rank waits for another. A rank may read weights while others change them, and when two ranks
write the same number at the same time, one of the two changes may be lost. For small steps that
does little harm. Niu, Recht, Re, Wright, Hogwild!, NIPS 2011, show it for sparse gradients, which
seldom touch the same weights; a network's gradients are dense, but it works in practice, with about
the staleness of Downpour SGD. Each rank keeps its own optimizer state.
"""

from __future__ import annotations

import numpy as np

from numba_kernels.optimizers import Optimizer
from numba_kernels.optimizers.clipping import clip_by_norm
from numba_kernels.shared.window import aligned
from numba_kernels.spans import span
from numba_kernels.team.team import Team

from ..replica.base import Batch, Replica
from .base import OneModel


class Own:
    """A rank's own optimizer, with state for all n weights."""

    def __init__(self, optimizer: Optimizer, n: int, dtype, segments):
        self.optimizer, self.state = optimizer, optimizer.init(n, dtype, segments)


class Hogwild(OneModel):
    """Hogwild: all ranks of `team` train on one copy of the weights, so they must share memory."""

    default_optimizer = "adam"

    def __init__(self, team: Team | None = None):
        self.team = team or Team()
        if not self.team.single_node or not self.team.shared:
            raise ValueError(
                f"strategy 'hogwild' needs ranks that share memory, got {self.team.size} ranks on "
                f"{len(self.team.nodes)} nodes; 'downpour' works across nodes"
            )
        self.updates_a_step = self.team.size

    def attach(
        self, replica: Replica, optimizer: Optimizer, clip_norm: float | None = None
    ) -> None:
        self.replica, self.clip_norm, self._seen = replica, clip_norm, 0
        n, dtype = replica.parameters.size, replica.parameters.dtype
        self.team.broadcast(replica.parameters)
        own = replica.parameters.copy()
        common = self.team.empty(n, dtype, common=True)
        replica.place(common, aligned(n, dtype))  # all ranks copy equal weights there
        if replica.state.size:
            replica.state = self.team.broadcast(replica.state.copy())
        self.update = Own(optimizer, n, dtype, replica.segments)
        self.team.barrier()
        replica.parameters[:] = own
        self.team.barrier()

    def step(self, batch: Batch) -> tuple[float, int]:
        """One update by this rank; returns its own samples' mean loss, and their number."""
        with span("gradient"):
            loss, samples = self.gradient(batch)
        self._seen += samples
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
        if self.replica.state.size:
            self.replica.state = self.team.broadcast(self.replica.state.copy())
        self._seen = 0
        self.settle()

    def save(self) -> tuple[dict, dict, dict]:
        first, last = self.team.slice_of(self.replica.parameters.size)
        vectors = {"parameters": self.replica.parameters[first:last]}
        state = self.update.state
        own = {"state": self.replica.state, "seen": np.array([self._seen])}
        own |= {"slots": state.slots, "updates": np.array([state.step])}
        values = {"rate": self.update.optimizer.learning_rate}
        if self.loss_scale is not None:
            values["loss_scale"] = self.loss_scale.values
        return values, vectors, own

    def restore(self, saved) -> None:
        of = self.team.rank
        self.settle()
        self.replica.parameters[:] = saved.vector("parameters", 0, self.replica.parameters.size)
        self.settle()
        state = self.update.state
        state.slots[:], state.step = saved.own("slots", of), int(saved.own("updates", of)[0])
        self._seen = int(saved.own("seen", of)[0])
        values = saved.values["strategy"]
        self.set_rate(values["rate"], correct_momentum=False)
        if self.loss_scale is not None and "loss_scale" in values:
            self.loss_scale.values = values["loss_scale"]
        if self.replica.state.size:
            self.replica.state = saved.own("state", of).astype(self.replica.state.dtype)
