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

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numba_kernels.errors import TeamError
from numba_kernels.optimizers.base import Optimizer, State, check_range, cut
from numba_kernels.optimizers.clipping import clip_factor, squared_length
from numba_kernels.spans import span
from numba_kernels.team.exchange import begin
from numba_kernels.team.team import Team
from tutorial_dl.replica.base import Batch, lay_out, length, plain
from tutorial_dl.replica.layered import loss_of
from tutorial_dl.replica.layers import At, Layer

STAGES = (0, 1, 2, 3)


class ZeRO:
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

    Attributes:
        sent: Bytes of weights and gradients that this rank has given to others.
        most_in_use: The most bytes of whole layers, of weights and gradients, that this rank held
            at a time beyond what `held` counts.
    """

    def __init__(
        self,
        team: Team,
        layers: Sequence[Layer],
        optimizer: Optimizer,
        stage: int = 3,
        loss: str = "cross_entropy",
        seed: int = 0,
        dtype: Any = np.float32,
        clip_norm: float | None = None,
    ) -> None:
        if stage not in STAGES:
            raise ValueError(f"stage must be 0, 1, 2 or 3, got {stage}")
        if optimizer.undivided:
            raise ValueError(
                f"{optimizer.in_words} needs all weights at once, so ranks can't divide its state: "
                "use an optimizer of numba_kernels.optimizers"
            )
        if clip_norm is not None:
            check_range("clip_norm", clip_norm)
        self.team, self.optimizer, self.stage, self.loss = team, optimizer, stage, loss
        self.seed, self.dtype, self.clip_norm = seed, np.dtype(dtype), clip_norm
        self.steps = self.sent = self.most_in_use = self._in_use = 0
        random = np.random.default_rng(seed)
        self.parts = [Part(layer, self, random) for layer in layers]
        self.n = sum(part.n for part in self.parts)

    def step(self, batch: Batch) -> tuple[float, int]:
        """One update with this rank's share of a batch.

        Returns the mean loss over all ranks' samples, and the number of samples.
        """
        for part in self.parts:
            part.whole = None  # what a step that failed has gathered, or has begun to
        self._in_use = 0
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
        self._update()
        self.steps += 1
        return float(team.allreduce(np.array([loss]))[0]) / total, total

    def held(self) -> dict[str, int]:
        """Bytes that this rank holds between two steps: of weights, gradients and state.

        These are the sizes of the arrays themselves, not of a formula.
        """
        return {
            "weights": sum(part.weights.nbytes for part in self.parts),
            "gradients": sum(part.gradient.nbytes for part in self.parts),
            "state": sum(part.state.slots.nbytes for part in self.parts),
        }

    def weights(self) -> np.ndarray:
        """All weights (n,), on every rank, as in LayeredReplica.parameters. Collective."""
        whole = [
            part.weights if self.stage < 3 else self._whole(part, part.weights)
            for part in self.parts
        ]
        return np.concatenate([np.zeros(0, self.dtype), *whole])

    def slots(self) -> np.ndarray:
        """The whole state of the optimizer (k, n), on every rank. Collective."""
        found = np.empty((self.optimizer.slots, self.n), self.dtype)
        first = 0
        for part in self.parts:
            for row, own in zip(found[:, first : first + part.n], part.state.slots, strict=True):
                row[:] = own if self.stage == 0 else self._whole(part, own)
            first += part.n
        return found

    def load(self, weights: np.ndarray, slots: np.ndarray | None = None, steps: int = 0) -> None:
        """Take weights (n,), and the optimizer's state (k, n): those of any stage and any ranks."""
        if weights.shape != (self.n,):
            raise ValueError(f"weights must have shape ({self.n},), got {weights.shape}")
        first = 0
        for part in self.parts:
            part.weights[:] = weights[first : first + part.n][part.keeps]
            if slots is not None:
                part.state.slots[:] = slots[:, first : first + part.n][:, part.mine]
            part.state.step = steps
            first += part.n
        self.steps = steps

    def check(self) -> None:
        """After a failure: raise TeamError unless all ranks have made the same updates. Collective.

        Ranks update their shares when the last exchange is over; so a rank that fails then leaves
        shares of two steps, which only a checkpoint (`load`) makes one model again.
        """
        steps = self.team.allreduce(np.array([self.steps, -self.steps]), "max")
        if steps[0] != -steps[1]:
            raise TeamError(
                f"some ranks have made {-steps[1]} updates, others {steps[0]}: load a checkpoint"
            )

    # The parts of a step

    def _forward(self, x, at: At):
        if isinstance(x, np.ndarray) and x.dtype.kind == "f":
            x = x.astype(self.dtype, copy=False)
        saved = []
        for part, w in self._ahead(self.parts, keeps_last=True):
            if len(x):
                with span("forward"):
                    x, one = part.layer.forward(x, part.views(w), at)
                saved.append(one)
        return x, saved

    def _backward(self, saved: list, gy: np.ndarray | None) -> None:
        for part, w in self._ahead(self.parts[::-1]):
            gradient = part.gradient if self.stage < 2 else self._take(part)
            gradient[:] = 0
            if gy is not None:
                with span("backward"):
                    one = saved.pop()
                    gy, kept = part.layer.backward_inputs(part.views(w), one, gy)
                    part.layer.backward_weights(one, kept, part.views(gradient))
            if self.stage >= 2 and part.n:
                part.gradient[:] = self.team.reduce_scatter(gradient)
                self._count(part)
                self._drop(gradient)

    def _update(self) -> None:
        """Update this rank's slices; in stages 1 and 2, gather the new weights of all ranks."""
        team, rule = self.team, self.optimizer
        for part in self.parts:
            if part.n and self.stage < 2:
                (team.allreduce if self.stage == 0 else team.reduce_scatter)(part.gradient)
                self._count(part)
        pairs = [(part.shard, part.gradient_shard, part.state) for part in self.parts if part.n]
        if self.clip_norm is not None:
            squares = np.array([sum(squared_length(g) for _, g, _ in pairs)])
            if self.stage > 0:
                team.allreduce(squares)
            factor = clip_factor(math.sqrt(squares[0]), self.clip_norm)
            if factor != 1:
                for _, g, _ in pairs:
                    g *= g.dtype.type(factor)
        with span("update"):
            squares = [rule.begin(*pair) for pair in pairs]
            if rule.layered and self.stage > 0:  # norms over layers that lie on several ranks
                together = team.allreduce(np.concatenate(squares))
                squares = np.split(together, np.cumsum([len(one) for one in squares])[:-1])
            for pair, one in zip(pairs, squares, strict=True):
                rule.finish(*pair, one)
        if self.stage in (1, 2):
            parts = [part for part in self.parts if part.n]
            on_their_way = [Gathering(team, part.weights, part.edges) for part in parts]
            for one in on_their_way:
                one.wait()
        for part in self.parts:
            if part.n and self.stage < 3:
                self._count(
                    part, gathers=True
                )  # new weights; in stage 0 the second half of an allreduce

    # Weights of whole layers, for as long as they are needed

    def _ahead(self, parts: Sequence[Part], keeps_last: bool = False):
        """Yield (part, its whole weights), with the next part's weights on their way meanwhile.

        `keeps_last`: the last part's stay, since the backward pass begins with them.
        """
        if self.stage < 3:
            yield from ((part, part.weights) for part in parts)
            return
        coming = [part for part in parts if part.n]
        if coming:
            coming[0].whole = coming[0].whole or self._gather(coming[0])
        for part in parts:
            if not part.n:
                yield part, part.weights
                continue
            at = coming.index(part)
            if at + 1 < len(coming):
                coming[at + 1].whole = self._gather(coming[at + 1])
            w = part.whole.wait()
            yield part, w
            if at + 1 < len(coming) or not keeps_last:
                part.whole = None
                self._drop(w)

    def _gather(self, part: Part) -> Gathering:
        """Begin to gather the whole weights of a part, of which this rank has its slice."""
        whole = self._take(part)
        whole[part.mine] = part.weights
        self._count(part, gathers=True)
        return Gathering(self.team, whole, part.edges)

    def _whole(self, part: Part, own: np.ndarray) -> np.ndarray:
        whole = np.empty(part.n, own.dtype)
        whole[part.mine] = own
        return Gathering(self.team, whole, part.edges).wait()

    def _take(self, part: Part) -> np.ndarray:
        memory = np.empty(part.n, self.dtype)
        self._in_use += memory.nbytes
        self.most_in_use = max(self.most_in_use, self._in_use)
        return memory

    def _drop(self, memory: np.ndarray) -> None:
        self._in_use -= memory.nbytes

    def _count(self, part: Part, gathers: bool = False) -> None:
        """Count what a reduce-scatter sends, all but this rank's slice, or (`gathers`) what an
        allgather does, this slice to all others."""
        rank, others = self.team.rank, self.team.size - 1
        own = part.edges[rank + 1] - part.edges[rank]
        self.sent += (own * others if gathers else part.n - own) * self.dtype.itemsize


class Part:
    """A layer, and what this rank holds of its vectors of n elements."""

    whole: Gathering | None = None  # all weights, or those on their way, in stage 3

    def __init__(self, layer: Layer, of: ZeRO, random: np.random.Generator) -> None:
        team, dtype, stage = of.team, of.dtype, of.stage
        self.layer, self.segments = layer, lay_out(layer.arrays())
        self.n = n = length(self.segments)
        self.edges = [*(team.slice_of(n, rank)[0] for rank in range(team.size)), n]
        own = slice(*team.slice_of(n))
        self.mine = own if stage > 0 else slice(0, n)  # whose state this rank has
        self.keeps = own if stage == 3 else slice(0, n)  # of the weights
        whole = np.zeros(n, dtype)
        layer.start(self.views(whole), random)
        self.weights = whole if stage < 3 else whole[own].copy()
        self.gradient = np.zeros(n if stage < 2 else own.stop - own.start, dtype)
        self.shard = self.weights if stage == 3 else self.weights[self.mine]
        self.gradient_shard = self.gradient if stage >= 2 else self.gradient[self.mine]
        size = self.mine.stop - self.mine.start
        if of.optimizer.layered and n:
            self.state = of.optimizer.init(size, dtype, self.segments, self.mine.start)
        else:
            self.state = State(0, np.zeros((of.optimizer.slots, size), dtype), cut([0], 0, size), 0)

    def views(self, vector: np.ndarray) -> list[np.ndarray]:
        return [one.of(vector) for one in self.segments]


class Gathering:
    """An allgather on its way: in round k each rank sends its slice to the rank k to the right."""

    def __init__(self, team: Team, whole: np.ndarray, edges: Sequence[int]) -> None:
        self.whole, self._on_their_way = whole, []
        own = whole[edges[team.rank] : edges[team.rank + 1]]
        for k in range(1, team.size):
            right, left = (team.rank + k) % team.size, (team.rank - k) % team.size
            incoming = whole[edges[left] : edges[left + 1]]
            self._on_their_way.append(begin(team, own, right, incoming, left, whole.size))

    def wait(self) -> np.ndarray:
        """All slices, once they have arrived."""
        while self._on_their_way:
            self._on_their_way.pop(0).wait()
        return self.whole


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
