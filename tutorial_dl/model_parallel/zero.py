"""ZeRO: data parallelism without copies of what every rank would hold alike.

In data parallelism, each of N ranks holds all weights, their gradient and the optimizer's state,
though it needs most of them only for a moment. ZeRO divides them, in three stages:

    stage    whole on each rank              1/N on each rank
    0        weights, gradient, state                             data parallelism
    1        weights, gradient               state
    2        weights                         gradient, state
    3                                        weights, gradient, state

Here each layer's weights are one vector, of which rank r owns slice r. A step of stage 3:

    forward    layer 1, 2, ...   gather the weights of layer l + 1, while layer l computes;
                                 drop those of layer l after use
    backward   ..., 2, 1         the same, from the last layer on; as soon as the gradient of a
                                 layer is complete, reduce-scatter it: each rank keeps its slice
    update     each rank updates its slices; nothing is exchanged (but norms, see below)

Stages 1 and 2 gather the new weights once, at the end. So with n parameters each rank sends about
2 n numbers per step in stages 0 to 2 (a reduce-scatter and an allgather), and 3 n in stage 3, less
the last layer, which stays for the backward pass (section 7 of the paper).

All ranks do what one process would do with the whole batch: gradients are sums over the samples of
all ranks, divided by their number, so shares may be uneven, and a rank may have no samples.
Clipping and the norms of LARS and LAMB add up each rank's sums of squares.

Rajbhandari, Rasley, Ruwase and He, arXiv 1910.02054. (Stage 1 of `train` is numba_kernels.fused,
which reduces and updates in one pass over shared memory; here all stages are written alike.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_kernels.optimizers.base import Optimizer
from numba_kernels.spans import span
from numba_kernels.team.collectives import Collectives
from tutorial_dl.model_parallel.shards import Shards
from tutorial_dl.replica.base import Batch, lay_out, length, plain
from tutorial_dl.replica.layered import loss_of
from tutorial_dl.replica.layers import At, Layer


class ZeRO(Shards):
    """Ranks that train one model of numpy layers, each holding a share of it. Collective.

    Args:
        team: The ranks that train together, N.
        layers: The layers in order (tutorial_dl/replica/layers.py).
        optimizer: The update rule, one whose state can be divided among ranks.
        stage: 0 to 3, see above.
        loss: "cross_entropy" or "mse", as in LayeredReplica.
        seed: Seed of the initial weights and of dropout's masks: those of a LayeredReplica. No rank
            ever holds more than one layer of them in stage 3.
        dtype: float32 or float64.
        clip_norm: Clip the gradient of the whole batch to this norm; None: no clipping.

    Attributes, besides those of `Shards` (what this rank has sent, and held at most):
        steps: Updates so far.
        activations: Bytes that the last forward pass kept for the backward pass.
    """

    def __init__(
        self,
        team: Collectives,
        layers: Sequence[Layer],
        optimizer: Optimizer,
        stage: int = 3,
        loss: str = "cross_entropy",
        seed: int = 0,
        dtype: Any = np.float32,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(team, stage, dtype)
        self.loss, self.seed, self.activations = loss, seed, 0
        random = np.random.default_rng(seed)
        for layer in layers:
            segments = lay_out(layer.arrays())
            whole = np.zeros(length(segments), self.dtype)
            layer.start([one.view(whole) for one in segments], random)
            self.add(segments, whole).layer = layer
        self.optimize_by(optimizer, clip_norm)

    steps = property(lambda self: self.state.step, lambda self, n: self.count_from(n))

    def step(self, batch: Batch) -> tuple[float, int]:
        """One update with this rank's share of a batch.

        Returns the mean loss over all ranks' samples, and the number of samples.
        """
        self.reset()
        x, y = plain(batch)
        team, counts = self.team, np.zeros(self.team.size)
        counts[team.rank] = len(x)
        team.allreduce(counts)
        total, first = int(counts.sum()), int(counts[: team.rank].sum())
        if total == 0:
            return 0.0, 0
        at = At(self.seed, self.steps, first, training=True)
        z, saved = self._forward(x, at)
        loss = 0.0
        gy = None
        if len(x):
            loss, _, gy = loss_of(self.loss, z, y)
            gy *= self.dtype.type(1 / total)
        self._backward(saved, gy)
        self.update()
        return float(team.allreduce(np.array([loss]))[0]) / total, total

    def load(self, weights: np.ndarray, slots: np.ndarray | None = None, steps: int = 0) -> None:
        """Take weights (n,), and the optimizer's state (k, n): those of any stage and any ranks."""
        if weights.shape != (self.n,):
            raise ValueError(f"weights must have shape ({self.n},), got {weights.shape}")
        for part in self.parts:
            part.weights[:] = weights[part.offset : part.offset + part.n][part.keeps]
        if slots is not None:
            for part in self.parts:
                part.state.slots[:] = slots[:, part.offset : part.offset + part.n][:, part.mine]
        self.count_from(steps)

    def _forward(self, x, at: At):
        if isinstance(x, np.ndarray) and x.dtype.kind == "f":
            x = x.astype(self.dtype, copy=False)
        saved = []
        for part, w in self.ahead(self.parts, keeps_last=True):
            if len(x):
                with span("forward"):
                    x, one = part.layer.forward(x, part.views(w), at)
                saved.append(one)
        self.activations = sum(memory_of(saved).values())
        return x, saved

    def _backward(self, saved: list, gy: np.ndarray | None) -> None:
        for part, w in self.ahead(self.parts[::-1]):
            gradient = self.gradient_of(part) if part.n else part.gradient
            if gy is not None:
                with span("backward"):
                    one = saved.pop()
                    gy, kept = part.layer.backward_inputs(part.views(w), one, gy)
                    part.layer.backward_weights(one, kept, part.views(gradient))
            self.reduce(part, gradient)


def memory_of(saved: Any) -> dict[int, int]:
    """The arrays in nested lists and tuples: id of each piece of memory -> its bytes."""
    if isinstance(saved, np.ndarray):
        while isinstance(saved.base, np.ndarray):
            saved = saved.base
        return {id(saved): saved.nbytes}
    if isinstance(saved, list | tuple):
        return {name: size for one in saved for name, size in memory_of(one).items()}
    return {}


def formulas(n: int, ranks: int, stage: int, slots: int = 2, itemsize: int = 4) -> dict[str, float]:
    """Bytes that each rank holds of a model of n parameters, as the paper's figure 1 says.

    Args:
        n, ranks, stage: Number of parameters, N, and 0 to 3.
        slots: Running averages of the optimizer: 2 for Adam, 1 for momentum.
        itemsize: Bytes per number; all are of one kind here. (The paper's 2 + 2 + 12 is mixed
            precision: weights and gradients in 16 bits, with a copy of the weights and Adam's
            averages in 32.)

    >>> formulas(1000, 4, 3)
    {'weights': 1000.0, 'gradients': 1000.0, 'state': 2000.0}
    """
    share = [1 if stage < first else 1 / ranks for first in (3, 2, 1)]
    numbers = zip(("weights", "gradients", "state"), share, (1, 1, slots), strict=True)
    return {name: float(n * part * count * itemsize) for name, part, count in numbers}


def table(of: ZeRO) -> str:
    """Measured bytes of this rank beside the formulas, in text; one line per kind."""
    held = of.held()
    expected = formulas(of.n, of.team.size, of.stage, of.optimizer.slots, of.dtype.itemsize)
    rows = [f"stage {of.stage}, {of.team.size} ranks, {of.n:,} parameters: bytes on a rank"]
    rows += [f"{'':14}{'measured':>14}{'formula':>14}"]
    rows += [f"{name:14}{held[name]:14,}{expected[name]:14,.0f}" for name in held]
    rows += [f"{'layers in use':14}{of.most_in_use:14,}{'':>13}"]
    return "\n".join(row.rstrip() for row in rows)
