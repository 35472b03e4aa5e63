"""Gossip: each rank averages with one random peer, so no exchange waits for all ranks.

    rank i:        x_i <- inner(x_i, g_i(x_i))                H times, with its share of each batch
    pair (i, j):   D_i <- w_i - (x_i + x_j) / 2               j: the peer that was drawn for i
    rank i:        v_i <- alpha v_i - beta D_i;   w_i <- w_i + v_i;   x_i <- w_i

Each rank has weights w_i of its own; what one learns spreads to p ranks in about log2 p exchanges.
An exchange costs a message each way, however many ranks there are, and a slow rank holds up its
peer only.

This is NoLoCo (Kolehmainen et al., arXiv 2506.10911), whose velocity is, with gamma = beta,

    v_i <- alpha v_i + beta mean(x - w) + gamma (mean(w) - w_i)     means over the pair

The last term pulls the pair together; it needs gamma > alpha. With H = 1, alpha = 0 and beta = 1 it
is the averaging of AD-PSGD (Lian et al., arXiv 1710.06952, algorithm 1), in rounds: here all ranks
make equally many steps. With an odd number, one rank has no peer in a round.
"""

import numpy as np

from numba_kernels.optimizers import SGD, Optimizer
from numba_kernels.team.collectives import Collectives
from numba_kernels.team.exchange import begin

from ..config import OPTIONS
from ..layout.layout import Layout, nodes_of
from ..replica.base import Replica
from .local_steps import LocalSteps


class Gossip(LocalSteps):
    """Ranks, or groups of them, average in random pairs after each `inner_steps` steps.

    At the end of an epoch, all ranks get the mean of their weights, which is validated and saved.

    Args:
        inner_steps: H, at least 1
        outer_rate: beta, above 0
        peer_momentum: alpha, from 0 to below `outer_rate`
        layout: groups, as for LocalSteps
    """

    def __init__(
        self,
        team: Collectives | None = None,
        inner_steps: int = 50,
        outer_rate: float = 0.7,
        peer_momentum: float = 0.3,
        layout: Layout | None = None,
    ):
        OPTIONS["peer_momentum"].check_range(peer_momentum)
        if peer_momentum >= outer_rate:
            raise ValueError(
                f"peer_momentum must be below outer_rate, or ranks drift apart; got "
                f"{peer_momentum:g} and {outer_rate:g}"
            )
        super().__init__(team, inner_steps, SGD(outer_rate, peer_momentum), layout=layout)

    alike = property(lambda self: self.steps == self.mixed == 0)

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        super().attach(replica, optimizer, clip_norm)
        layout = self.layout or Layout(masters=0, workers=self.team.size)
        # The ranks that have the same number in their groups, this one included
        self.peers = layout.along("worker", self.team.rank, nodes_of(self.team))
        # Also a rank that has no peer at first loads the kernels of an exchange now
        team, x, d = self.team, replica.parameters[:1], replica.gradient[:1]
        begin(team, x, (team.rank + 1) % team.size, d, (team.rank - 1) % team.size).wait()

    def _begin(self) -> None:
        super()._begin()
        self.mixed = 0  # exchanges since all ranks had the same weights

    def peer(self) -> int:
        """The rank to average with in this round; this rank itself if there is none."""
        order = np.random.default_rng(self.outer_state.step).permutation(len(self.peers)).tolist()
        place = order.index(self.peers.index(self.team.rank)) ^ 1
        return self.peers[order[place]] if place < len(order) else self.team.rank

    def exchange(self) -> None:
        super().exchange()
        self.mixed += 1

    def difference(self) -> np.ndarray:
        """D of this rank, shape (n,), in the memory of the gradient."""
        x, d, peer = self.replica.parameters, self.replica.gradient, self.peer()
        begin(self.team, x, peer, d, peer).wait()  # d is the peer's weights
        d += x
        d *= d.dtype.type(-0.5)
        d += self.w
        return d

    def average_state(self) -> None:
        if self.steps:
            self.exchange()
        if self.mixed:
            self.team.allreduce(self.w, "mean")
            if self.replica.traits.constrained:
                self.replica.constrain(self.w)
            self.replica.parameters[:], self.mixed = self.w, 0
        super().average_state()

    def settle(self) -> None:
        """Show the mean of all ranks' weights; the next step goes on from this rank's own."""
        shown = self.alike or self._own is not None
        super().settle()
        if not shown:
            self.team.allreduce(self.replica.parameters, "mean")

    def save(self) -> tuple[dict, dict, dict]:
        values, vectors, own = super().save()
        own |= {"common": self.w, "velocity": self.outer_state.slots}
        return values | {"mixed": self.mixed}, vectors, own

    def restore(self, saved) -> None:
        super().restore(saved)
        self.mixed, of = saved.values["strategy"]["mixed"], self.team.rank
        self.w[:], self.outer_state.slots[:] = saved.own("common", of), saved.own("velocity", of)
