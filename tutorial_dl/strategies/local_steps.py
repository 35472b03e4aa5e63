"""Local steps: ranks train on their own, and seldom talk (local SGD, federated averaging, DiLoCo).

    rank i:      x_i <- inner(x_i, g_i(x_i))               H times, with its share of each batch
    all ranks:   D   <- sum_i s_i (w - x_i) / sum_i s_i    s_i: its samples since the last exchange
    all ranks:   w   <- outer(w, D);   x_i <- w            the same w everywhere

D, the mean way that ranks have gone, is used like a gradient, by any optimizer:

    outer                   is known as
    SGD, rate 1             local SGD (Stich, arXiv 1805.09767), federated averaging (McMahan et
                            al., arXiv 1602.05629, algorithm 1): w is the mean of the x_i
    Nesterov, rate .7, .9   DiLoCo (Douillard et al., arXiv 2311.08105, algorithm 1)
    Adam                    FedAdam (Reddi et al., arXiv 2003.00295, algorithm 2)

H = 1 with SGD inside and SGD of rate 1 outside is synchronous SGD. Ranks keep their own state of
the inner optimizer from round to round. They may form groups, which are synchronous inside.
"""

import numpy as np

from numba_kernels import compression as methods
from numba_kernels.optimizers import Optimizer, get
from numba_kernels.spans import span
from numba_kernels.step.step import Step
from numba_kernels.team.collectives import Collectives

from ..config import OPTIONS
from ..layout.layout import Layout, nodes_of
from ..replica.base import Batch, Replica, TrainedBy
from .base import OneModel


class LocalSteps(OneModel):
    """Ranks, or groups of them, make `inner_steps` updates of their own between two exchanges.

    Each batch is divided over all ranks, as in synchronous training. The end of an epoch ends a
    round, too: the common weights are validated. In between, a replica has its rank's own.

    Args:
        inner_steps: H, at least 1
        outer_optimizer: the name of an optimizer, or an Optimizer with a rate of its own
        outer_rate: the learning rate of an optimizer that is given by its name
        compression: how the differences w - x_i are sent, as for Synchronous: "int8", "fp16" ...
        layout: Layout(masters=0, workers=W, devices=D), W groups of D ranks; None: each rank alone
    """

    group = None  # the ranks that make each update together; `attach` makes it

    def __init__(
        self,
        team: Collectives | None = None,
        inner_steps: int = 50,
        outer_optimizer: str | Optimizer = "nesterov",
        outer_rate: float = 0.7,
        compression: str | methods.Method | None = None,
        layout: Layout | None = None,
    ):
        OPTIONS["inner_steps"].check_range(inner_steps)
        if layout is not None and (layout.masters or layout.search):
            raise ValueError(f"{self.name} has no master: use Layout(masters=0, ...)")
        self.inner_steps, self.layout = inner_steps, layout
        self.outer = get(outer_optimizer, outer_rate)
        if self.outer.shows:
            raise ValueError(
                f"outer optimizer {self.outer.in_words} shows other weights than it trains, but "
                "the common weights are validated: choose another one"
            )
        self.compression = None if compression is None else methods.get(compression)
        super().__init__(team)

    def check_team(self, team) -> None:
        (self.layout or Layout(masters=0, workers=team.size)).check_ranks(team.size)

    devices = property(lambda self: 1 if self.layout is None else self.layout.devices)
    apart = property(lambda self: self.team.size // self.devices)
    shares_batches = property(lambda self: self.devices > 1)
    alike = property(lambda self: self.steps == 0)

    @property
    def settings(self) -> dict:
        return {
            "ranks": self.team.size, "ranks a group": self.devices,
            "inner steps": self.inner_steps, "outer optimizer": str(self.outer),
        }  # fmt: skip

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        """Give all ranks the weights of the first, and make this rank's group."""
        self.take(replica)
        self.check_optimizer(optimizer)
        self.replica, team = replica, self.team
        layout = self.layout or Layout(masters=0, workers=team.size)
        self.group = team.split(layout.along("device", team.rank, nodes_of(team))[0])
        if replica.traits.uses_team:
            replica.use_team(self.group)
        n, dtype = replica.parameters.size, replica.parameters.dtype
        team.broadcast(replica.parameters)
        replica.place(self.group.empty(n, dtype), self.group.empty(n, dtype))
        self.share_state()
        self.update = Step(
            self.group, optimizer, replica.parameters, replica.gradient, replica.segments, clip_norm
        )
        self.w = replica.parameters.copy()
        self.outer_state = self.outer.init(n, dtype, replica.segments)
        self._begin()

    def _begin(self) -> None:
        self.replica.parameters[:] = self.w
        self.steps = self.samples = 0  # of this round
        self._own: np.ndarray | None = None  # this rank's weights, while the replica shows w
        if self.compression is not None:
            self.left = self.compression.init(self.w.size, self.replica.segments, self.w.dtype)

    def begin(self, batch: Batch) -> tuple[float, int]:
        if self._own is not None:
            self.replica.parameters[:], self._own = self._own, None
        elif not self.steps:
            self.w[:] = self.replica.parameters  # which a callback may have changed
        return super().begin(batch)

    def end(self, loss: float, samples: int) -> tuple[float, int]:
        """As `OneModel.end`, for the samples of this rank's group; the last step exchanges."""
        updates = self.state.step
        done = super().end(loss, samples)
        self.samples += samples * (self.state.step - updates)  # (none if float16 has overflowed)
        self.steps += 1
        if self.steps == self.inner_steps:
            self.exchange()
        return done

    def exchange(self) -> None:
        """End the round: all ranks get the same new weights. Collective over the team."""
        with span("reduce"):
            d = self.difference()
        if d is not None:
            with span("update"):
                self.outer.update(self.w, d, self.outer_state)
                if self.replica.traits.constrained:
                    self.replica.constrain(self.w)
        self.replica.parameters[:] = self.w
        self.steps = self.samples = 0

    def difference(self) -> np.ndarray | None:
        """D, shape (n,), in the memory of the gradient; None if no rank has had a sample."""
        team, d = self.team, self.replica.gradient
        (total,) = team.allreduce(np.array([self.samples], np.float64))
        if not total:
            return None
        np.subtract(self.w, self.replica.parameters, out=d)
        if self.compression is None:
            d *= d.dtype.type(self.samples / total)
            return team.allreduce(d)
        d *= d.dtype.type(team.size * self.samples / total)  # of a mean over ranks
        return self.compression.allreduce(team, d, self.left, "mean")

    def average_state(self) -> None:
        if self.steps:
            self.exchange()
        super().average_state()

    def settle(self) -> None:
        """Show the common weights; the next step goes on from this rank's own."""
        if not self.alike and self._own is None:
            self._own = self.replica.parameters.copy()
            self.replica.parameters[:] = self.w

    def total(self, sums: np.ndarray) -> np.ndarray:
        return self.team.allreduce(sums.copy()) / self.devices

    def trained_by(self) -> TrainedBy:
        return TrainedBy(self.optimizer, None, 0)  # each group has a state of its own

    def resume(self) -> None:
        """After a failure: begin a round with the first rank's common weights and outer state."""
        self.group.recover()
        team, state = self.team, self.outer_state
        team.broadcast(self.w)
        team.broadcast(state.slots)
        state.step = int(team.broadcast(np.array([state.step]))[0])
        self.update.resume()
        self._begin()
        self.share_state()

    def save(self) -> tuple[dict, dict, dict]:
        values, vectors, own = super().save()
        own |= self.save_own(values, vectors) | {"samples": np.array([self.samples])}
        own |= {} if self._own is None else {"weights": self._own}
        first, last = self.team.slice_of(self.holding.size)
        vectors["outer"] = self.outer_state.slots[:, first:last]
        values |= {"outer updates": self.outer_state.step, "steps": self.steps}
        if self.compression is not None:
            own |= {"residual": self.left.residual, "basis": self.left.basis}
        return values, vectors, own

    def restore(self, saved) -> None:
        values, of = saved.values["strategy"], self.team.rank
        for vector, name in ((self.w, "parameters"), (self.outer_state.slots, "outer")):
            vector[:] = saved.vector(name, 0, self.w.size)
        self.outer_state.step = values["outer updates"]
        self._begin()
        self.steps, self.samples = values["steps"], int(saved.own("samples", of)[0])
        self._own = saved.own("weights", of) if saved.has_own("weights") else None
        if self.compression is not None:
            self.left.residual[:] = saved.own("residual", of)
            self.left.basis[:] = saved.own("basis", of)
        self.restore_own(saved)
