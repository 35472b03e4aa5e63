"""Synchronous data parallelism: each rank takes a share of the batch; one common update.

    rank i:      g_i <- gradient(w, its s_i samples of the batch)
    all ranks:   g   <- sum_i s_i g_i / sum_i s_i          the gradient of the whole batch
    all ranks:   w   <- update(w, g)                       the same w everywhere

Weighting by s_i makes it exact: p ranks do what one process would do with the whole batch, also if
p does not divide the batch. Chen et al., arXiv 1604.00981; Goyal et al., arXiv 1706.02677. This is
what PyTorch's DistributedDataParallel (DDP) and Horovod do. By default each rank keeps and updates
1/p of the optimizer's state, as in ZeRO stage 1 (ZeRO-1, arXiv 1910.02054).

Ranks may have parts of the model, or of each sequence (replica/holding.py); the rule is the same:

    pipeline, tensor   the average is over the ranks that hold the same part
    context            over all ranks: all positions count alike and parts are equal, so it is the
                       average over positions. Only the samples are divided among fewer ranks.
    ZeRO 2 and 3       the replica reduces each layer's gradient as soon as it is complete; each
                       rank updates its slices

Only clipping needs a number from all parts: the norm of the whole model's gradient.
"""

import math

import numpy as np

from numba_kernels import compression as methods
from numba_kernels.optimizers import Optimizer
from numba_kernels.optimizers.clipping import clip_factor, squared_length
from numba_kernels.shared.window import aligned
from numba_kernels.spans import span
from numba_kernels.step.noise import NoiseScale, add_noise
from numba_kernels.step.step import Step
from numba_kernels.team.collectives import Collectives

from ..config import check_shard
from ..replica.base import Replica
from ..words import counted
from .base import OneModel


class Synchronous(OneModel):
    """All ranks of `team` train as if they were one process.

    Args:
        algorithm: "fused" reduces, updates and distributes the weights in one pass, with the
            optimizer's state divided among the ranks (ZeRO-1; numba_kernels.fused). The name of an
            allreduce algorithm ("auto", "naive", "tree", "ring", "shared_memory") does the two
            steps of the textbook instead, with the whole state on every rank: slower, and easier
            to follow.
        one_copy: all ranks of a node use one copy of the weights, which saves p - 1 copies
            (docs/memory.md); for "fused" without compression only. It changes nothing where ranks
            share no memory.
        compression: send fewer bytes: "fp16", "bf16", "top_k", "powersgd" (PowerSGD). Or "adasum",
            which sends no fewer, but lets more ranks join at the same learning rate. Or a Method
            with its own settings (numba_kernels.compression). The update is then done in two
            steps, and is only approximately that of one process. Where ranks share memory,
            compression only costs time.
        shard: the stage of ZeRO (model_parallel/zero.py). 1 divides the optimizer's state among the
            ranks; 0 does not, which is slower, and takes algorithm "auto" in place of "fused".
            For stages 2 and 3, train a model_parallel.ShardedReplica.
        noise_scale: measure the critical batch size in each epoch (numba_kernels/step/noise.py),
            which needs at least 2 ranks.
    """

    def __init__(
        self,
        team: Collectives | None = None,
        algorithm: str = "fused",
        one_copy: bool = False,
        compression: str | methods.Method | None = None,
        shard: int = 1,
        noise_scale: bool = False,
    ):
        check_shard(shard, one_copy)
        if shard > 1:
            raise ValueError(
                f"shard {shard} needs a model that is computed layer by layer: train "
                f"model_parallel.ShardedReplica(model, team, {shard}), and leave shard out"
            )
        if shard == 0 and algorithm == "fused":
            algorithm = "auto"
        self.compression = None if compression is None else methods.get(compression)
        self.two_steps = algorithm != "fused" or compression is not None
        if one_copy and self.two_steps:
            why = f"algorithm {algorithm!r}" if algorithm != "fused" else str(self.compression)
            raise ValueError(
                f"one_copy needs algorithm 'fused' without compression; with {why}, every rank "
                "updates its own weights"
            )
        super().__init__(team)
        self.algorithm, self.one_copy = algorithm, one_copy
        self.noise = NoiseScale() if noise_scale else None

    @property
    def name(self) -> str:
        return (self.holding.words if self.holding else "") or super().name

    def take(self, replica: Replica) -> None:
        holding = replica.holding
        if holding is None:
            super().take(replica)
            return
        if holding.team is not self.team:
            raise ValueError(
                f"the replica ({holding.words}) and the strategy must have the same team"
            )
        shares_sequences = holding.copies.size > holding.sharers.size
        if shares_sequences and isinstance(self.compression, methods.Adasum):
            raise ValueError(
                "adasum does not fit context parallelism: gradients of parts of one sequence are "
                "not those of independent batches"
            )
        if (holding.stage or not holding.complete) and (self.two_steps or self.one_copy):
            raise ValueError(
                f"{holding.words}: leave out algorithm, one_copy, compression and shard 0, which "
                "need the whole model on each rank"
            )
        self.holding = holding

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if optimizer.undivided and self.one_copy:
            raise ValueError(f"one_copy does not fit {optimizer.in_words}, leave it out")
        holding = self.holding
        if holding is None:
            return
        if self.noise is not None and (
            self.team.size == 1 or self.copies is not self.team or self.ranks_a_sample > 1
            or holding.stage or self.compression is not None
        ):  # fmt: skip
            raise ValueError(
                "noise_scale compares gradients of at least 2 ranks, each with samples of its own "
                f"and the whole model: it does not fit {self.name} on "
                + counted(self.team.size, "rank")
                + (f" with {self.compression}" if self.compression else "")
            )
        if holding.complete and not holding.stage:
            return
        if optimizer.undivided:
            raise ValueError(
                f"{holding.words}: this needs an optimizer with a kernel, got "
                f"{optimizer.in_words}: choose one with --optimizer"
            )
        for needs, what in (
            (optimizer.layered and holding.tensor is not None, "norms of whole layers"),
            (optimizer.whole and (holding.tensor is not None or holding.stage), "whole matrices"),
            (optimizer.of_model, "sums over the whole model"),
        ):
            if needs:
                raise ValueError(
                    f"{optimizer.in_words} needs {what}, of which each rank has a part: "
                    "use a rule such as sgd or adam"
                )

    def attach(self, replica: Replica, optimizer: Optimizer, clip_norm=None) -> None:
        """Give every copy the weights of the first, and move both vectors into shared memory."""
        if self.one_copy and replica.traits.constrained:
            raise ValueError("one_copy does not fit a model with constraints, leave it out")
        self.take(replica)
        self.check_optimizer(optimizer)
        self.replica, self._options = replica, {}
        if optimizer.whole and not self.holding.complete:
            optimizer = optimizer.told(self.holding.whole)
        if self.holding.stage:
            self.update = replica.update_by(optimizer, clip_norm)
            self.share_state()
            return
        copies, cut = self.copies, not self.holding.complete
        two_steps = self.two_steps or optimizer.undivided or (cut and clip_norm is not None)
        n, dtype = replica.parameters.size, replica.parameters.dtype
        copies.broadcast(replica.parameters)
        # Weights lie in the shared window only if other ranks write to them. One vector after the
        # other: the first move frees its old memory before the second needs memory.
        weights = aligned(n, dtype) if two_steps else copies.empty(n, dtype, common=self.one_copy)
        replica.place(weights, replica.gradient)
        replica.place(replica.parameters, copies.empty(n, dtype))
        self.share_state()
        if two_steps:
            algorithm = "auto" if self.algorithm == "fused" else self.algorithm
            self.update = TwoSteps(
                copies, replica, optimizer, algorithm, clip_norm, self.compression, self.holding,
                self.noise,
            )  # fmt: skip
        else:
            self.update = Step(
                copies, optimizer, replica.parameters, replica.gradient, replica.segments,
                clip_norm, self.noise,
            )  # fmt: skip
        # The part that no other rank reads need not be copied to memory that they can read.
        if self.update.takes_own and replica.traits.keeps_apart:
            self._options = {"apart": copies.slice_of(n)}

    def resume(self) -> None:
        """After a failure: give all copies the state of the first one. Collective.

        What ranks of different copies hold may differ by one update, as stages of a pipeline may;
        what ranks of a tensor group hold alike is made equal.
        """
        holding = self.holding
        holding.recover()
        if self.optimizer.shows:  # some ranks may have failed in a validation
            shown = bool(self.team.allreduce(np.array([int(self.shown)]), "min")[0])
            self.update.show(shown, turn=shown != self.shown)
            self.shown = shown
        self.update.resume()
        if self.loss_scale is not None and self.team.size > 1:
            self.loss_scale.values = self.team.broadcast(np.array(self.loss_scale.values))
        self.share_state()
        seeds = self.replica.random
        if seeds is not None and seeds.size:
            # Some may have drawn the masks of a step that others have not made. It will be made
            # again, so the lowest counters are right.
            for team in holding.together:
                if team.size > 1:
                    self.replica.random = team.allreduce(np.array(self.replica.random), "min")
        if holding.tensor is not None and holding.tensor.size > 1:
            self._share_alike(holding.tensor)

    def _share_alike(self, team: Collectives) -> None:
        """Give the ranks of a tensor group what the first of them holds alike. Collective."""
        replica, state, mine = self.replica, self.state, self.update.mine
        alike = self.holding.alike(replica.parameters.size)
        if replica.state.size:
            replica.state = team.broadcast(np.array(replica.state))
        for vector, same in (
            (replica.parameters, alike), *((row, alike[mine]) for row in state.slots)
        ):  # fmt: skip
            vector[same] = team.broadcast(vector[same])
        state.step = int(team.broadcast(np.array([state.step]))[0])
        rate = team.broadcast(np.array([self.optimizer.learning_rate], np.float64))[0]
        self.optimizer = self.optimizer.at_rate(float(rate))

    def save(self) -> tuple[dict, dict, dict]:
        values, vectors, own = super().save()
        if self.compression is not None:
            own |= {"residual": self.update.left.residual, "basis": self.update.left.basis}
        return values, vectors, own

    def restore(self, saved) -> None:
        super().restore(saved)
        if self.compression is None or not saved.has_own("residual"):
            return
        left, rank = self.update.left, self.team.rank
        left.basis[:] = saved.own("basis", 0)
        if saved.ranks == self.team.size:
            left.residual[:] = saved.own("residual", rank)
        elif rank == 0:  # another number of ranks: rank 0 sends what all of them had left
            left.residual[:] = sum(saved.own("residual", r) for r in range(saved.ranks))
            left.residual *= left.dtype.type(self.team.size / saved.ranks)  # for a mean over ranks


class TwoSteps:
    """The update of the textbook (as in DDP): allreduce the gradients, then update.

    Every rank holds the whole optimizer state and does the whole update. Compression, which needs
    the whole gradient, fits between the two steps; so do optimizers that Keras applies. `team` are
    the copies of what this rank holds; the other arguments are those of `Synchronous`.
    """

    takes_own = False  # the gradient must lie in one vector (see Step.takes_own)

    def __init__(
        self, team, replica, optimizer, algorithm, clip_norm, compression, holding, noise=None
    ):
        n, dtype = replica.parameters.size, replica.parameters.dtype
        self.team, self.replica, self.optimizer = team, replica, optimizer
        self.algorithm, self.clip_norm, self.compression = algorithm, clip_norm, compression
        self.holding, self.noise = holding, noise
        self.state = optimizer.init(n, dtype, replica.segments)
        self.mine = slice(0, n)  # the parameters that `state` covers
        if compression is not None:
            self.left = compression.init(n, replica.segments, dtype)

    def __call__(self, loss: float, samples: int) -> tuple[float, int]:
        """One update; `gradient` holds the mean over this rank's samples. See `fused.Step`."""
        g = self.replica.gradient
        own = 0.0 if self.noise is None or not samples else squared_length(g)
        with span("reduce"):
            total, loss = self.team.allreduce(np.array([samples, samples * loss]))  # sums
            if total:
                if self.compression is None:
                    g *= g.dtype.type(samples / total)
                    self.team.allreduce(g, "sum", self.algorithm)
                else:  # a mean over ranks: multiply each rank's weight by p
                    g *= g.dtype.type(self.team.size * samples / total)
                    self.compression.allreduce(self.team, g, self.left, "mean")
        if total:
            if self.noise is not None:
                whole = squared_length(g) / self.team.size
                add_noise(self.noise, self.team, own, samples, whole, total)
            with span("update"):
                if self.clip_norm is not None:
                    self.clip(g)
                self.optimizer.update(self.replica.parameters, g, self.state)
        return (float(loss / total) if total else 0.0), int(total)

    def show(self, shown: bool, turn: bool) -> None:
        """As `Step.show`; each rank has all weights and the whole state."""
        if turn:
            self.optimizer.show(self.replica.parameters, self.state, shown)

    def clip(self, gradient: np.ndarray) -> None:
        """Scale a gradient down to `clip_norm`, by the norm over the whole model."""
        squares = np.array([self.holding.squares(gradient)])
        if not self.holding.complete and self.holding.model.size > 1:
            self.holding.model.allreduce(squares)
        gradient *= gradient.dtype.type(clip_factor(math.sqrt(squares[0]), self.clip_norm))

    def resume(self) -> None:
        """After a failure: give all ranks the weights and state of rank 0. Collective."""
        self.team.broadcast(self.replica.parameters)
        self.team.broadcast(self.state.slots)
        self.state.step = int(self.team.broadcast(np.array([self.state.step]))[0])
        rate = self.team.broadcast(np.array([self.optimizer.learning_rate], np.float64))[0]
        self.optimizer = self.optimizer.at_rate(float(rate))  # matches rank 0's velocity
        if self.compression is not None:  # one basis for all ranks; residuals are dropped
            self.left = self.compression.init(self.left.n, self.replica.segments, self.left.dtype)
