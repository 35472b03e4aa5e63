"""`Shards`: what each rank holds of a model whose vectors are divided over a team, part by part.

A part is a layer or a few, whose weights are one vector; rank r owns slice r of it. `Shards` keeps
the slices, gathers whole weights ahead of their use and drops them after it, reduce-scatters a
part's gradient, and updates the slices. What computes with the weights is elsewhere: zero.py and
keras_sharded.py.

Whole weights that are only there for a moment lie in a `Space`: addresses that stay, with pages
that are given back to the system. So a TensorFlow variable, or what a gradient tape has kept of it,
may refer to them all the time: it must only be read while the weights are there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from numba_kernels.errors import TeamError
from numba_kernels.optimizers.base import Optimizer, State, check_range, cut
from numba_kernels.optimizers.clipping import clip_factor, squared_length
from numba_kernels.spans import span
from numba_kernels.team.collectives import Collectives
from tutorial_dl.model_parallel.shard_parts import DividedPart, Gathering, Space
from tutorial_dl.replica.base import Segment
from tutorial_dl.replica.holding import Holding, Part

STAGES = (0, 1, 2, 3)


class Shards:
    """The parts of a model on one rank of `team`, and their update.

    Args:
        team: The ranks that train together, N.
        stage: Of ZeRO, 0 to 3; see zero.py.
        dtype: float32 or float64.

    Attributes:
        parts: In order; together they make up the vectors of the whole model, of `n` elements.
        sent: Bytes of weights and gradients that this rank has given to others.
        most_in_use: The most bytes of whole layers, of weights and gradients, that this rank held
            at a time beyond what `held` counts.
        state: The optimizer's: its `step`, the updates so far. The averages are in the parts.
    """

    def __init__(self, team: Collectives, stage: int, dtype: Any) -> None:
        if stage not in STAGES:
            raise ValueError(f"stage must be 0, 1, 2 or 3, got {stage}")
        self.team, self.stage, self.dtype = team, stage, np.dtype(dtype)
        self.parts: list[DividedPart] = []
        self.n = self.sent = self.most_in_use = self._in_use = 0
        self.clip_norm: float | None = None
        self._scratch: Space | None = None

    def add(
        self, segments: Sequence[Segment], whole: np.ndarray, **memory: np.ndarray
    ) -> DividedPart:
        """Add a part with these weights; in stage 3 this rank keeps a copy of its slice of them.

        `memory`: where the slices of `weights` (stage 3) and `gradient` (2 and 3) shall lie.
        """
        part = DividedPart(self, segments, whole, **memory)
        self.parts.append(part)
        self.n += part.n
        return part

    def optimize_by(self, optimizer: Optimizer, clip_norm: float | None = None) -> None:
        """Make the optimizer's state of this rank's slices."""
        check_divisible(optimizer)
        if clip_norm is not None:
            check_range("clip_norm", clip_norm)
        self.optimizer, self.clip_norm = optimizer, clip_norm
        for part in self.parts:
            part.optimize_by(optimizer, self.dtype)
        self.state = State(0, np.zeros((0, 0), self.dtype), cut([0], 0, 0), 0)

    def held(self) -> dict[str, int]:
        """Bytes that this rank holds between two steps: of weights, gradients and state.

        These are the sizes of the arrays themselves, not of a formula.
        """
        return {
            "weights": sum(part.weights.nbytes for part in self.parts),
            "gradients": sum(part.gradient.nbytes for part in self.parts),
            "state": sum(part.state.slots.nbytes for part in self.parts),
        }

    # Whole vectors, and back

    def holding(self, whole: Sequence[Segment] = (), of_weights: bool = False) -> Holding:
        """What this rank has of gradients and the optimizer's state (`rows`), or of weights.

        A vector laid out so has the slices of all parts, one after the other.
        """
        found, at = [], 0
        for part in self.parts:
            own = part.keeps if of_weights else part.mine
            size = (own.stop - own.start,)
            there = Segment("", part.offset + own.start, size)
            found.append(Part(Segment("", at, size), there))
            at += size[0]
        segments = whole or [Segment("", part.offset, (part.n,)) for part in self.parts]
        divided = self.stage == 3 if of_weights else self.stage > 0
        team, words = self.team, f"synchronous, shard {self.stage}"
        return Holding(
            tuple(segments), self.n, tuple(found), team, team, team, team if divided else None,
            stage=self.stage, words=words,
        )  # fmt: skip

    def weights(self) -> np.ndarray:
        """All weights (n,), on every rank. Collective."""
        own = np.concatenate([part.weights for part in self.parts])
        return self.holding(of_weights=True).joined(own, 0, self.n)

    def slots(self) -> np.ndarray:
        """The whole state of the optimizer (k, n), on every rank. Collective."""
        found = np.empty((self.optimizer.slots, self.n), self.dtype)
        for whole, row in zip(found, self.rows(), strict=True):
            whole[:] = self.holding().joined(row, 0, self.n)
        return found

    def rows(self) -> Iterator[np.ndarray]:
        """The optimizer's running averages, one after the other, as this rank has them."""
        for k in range(self.optimizer.slots):
            yield np.concatenate([part.state.slots[k] for part in self.parts])

    def take_rows(self, rows: np.ndarray, updates: int) -> None:
        """The reverse of `rows` (k, n of this rank), after so many updates."""
        at = 0
        for part in self.parts:
            n = part.state.slots.shape[1]
            part.state.slots[:] = rows[:, at : at + n]
            at += n
        self.count_from(updates)

    @property
    def states(self) -> list[State]:
        return [part.state for part in self.parts]

    def count_from(self, updates: int) -> None:
        self.state.step = updates
        for part in self.parts:
            part.state.step = updates

    def reset(self) -> None:
        """Drop what a step that failed has gathered, or has begun to."""
        for part in self.parts:
            part.whole = None
            if part.space is not None:
                part.space.drop()
        if self._scratch is not None:
            self._scratch.drop()
        self._in_use = 0

    def resume(self) -> None:
        """After a failure: make all ranks go on from the same update. Collective.

        Ranks update their slices when the last exchange is over, so slices may differ by one
        update, as stages of a pipeline may.
        """
        self.reset()
        steps = np.array([self.state.step, -self.state.step])
        self.count_from(int(self.team.allreduce(steps, "max")[0]))
        if self.stage in (1, 2):
            self._gather_new()
        rate = self.team.broadcast(np.array([self.optimizer.learning_rate], np.float64))[0]
        self.optimizer = self.optimizer.at_rate(float(rate))

    def check(self) -> None:
        """After a failure: raise TeamError unless all ranks have made the same updates. Collective.

        Ranks update their shares when the last exchange is over; so a rank that fails then leaves
        shares of two steps, which only a checkpoint (`ZeRO.load`) makes one model again.
        """
        done = self.state.step
        steps = self.team.allreduce(np.array([done, -done]), "max")
        if steps[0] != -steps[1]:
            raise TeamError(
                f"some ranks have made {-steps[1]} updates, others {steps[0]}: load a checkpoint"
            )

    # A step

    def ahead(self, parts: Sequence[DividedPart], keeps_last: bool = False) -> Iterator:
        """Yield (part, its whole weights), with the next part's weights on their way meanwhile.

        `keeps_last`: the last part's stay, since the backward pass begins with them.
        """
        if self.stage < 3:
            yield from ((part, part.weights) for part in parts)
            return
        coming = [part for part in parts if part.n]
        if coming:
            coming[0].whole = coming[0].whole or self._gather(coming[0])
        at = 0
        for part in parts:
            if not part.n:
                yield part, part.weights
                continue
            at += 1
            if at < len(coming):
                coming[at].whole = self._gather(coming[at])
            yield part, part.whole.wait()
            if at < len(coming) or not keeps_last:
                self.drop(part)

    def gradient_of(self, part: DividedPart) -> np.ndarray:
        """Memory for the part's whole gradient, zeros; `reduce` gives it back."""
        if self.stage < 2:
            part.gradient[:] = 0
            return part.gradient
        self._use(part.n)
        return self.scratch(part.n)  # a dropped space holds zeros

    def scratch(self, n: int) -> np.ndarray:
        """The first n elements of the memory in which every part's gradient is computed."""
        if self._scratch is None:
            self._scratch = Space(max(part.n for part in self.parts), self.dtype)
        return self._scratch.array[:n]

    def reduce(self, part: DividedPart, gradient: np.ndarray, adds: bool = False) -> None:
        """Add up the ranks' gradients of a part that is complete. Collective.

        `adds`: to the gradient that this rank's slice already has, of earlier micro-batches.
        """
        if self.stage >= 2 and part.n:
            mine = self.team.reduce_scatter(gradient)
            if adds:
                part.gradient += mine
            else:
                part.gradient[:] = mine
            self._count(part)
            self._scratch.drop()
            self._use(-part.n)

    def update(self) -> None:
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
            self._gather_new()
        for part in self.parts:
            if part.n and self.stage < 3:
                # New weights; in stage 0 the second half of an allreduce
                self._count(part, gathers=True)
        self.state.step += 1

    def show(self, shown: bool, turn: bool) -> None:
        """As `Step.show`, of each part. Collective."""
        for part in self.parts if turn else ():
            self.optimizer.show(part.shard, part.state, shown)
        if self.stage in (1, 2):
            self._gather_new()

    def __call__(self, loss: float, samples: int) -> tuple[float, int]:
        """The update of a strategy: returns (mean loss, samples) of all ranks. Collective."""
        total, loss = self.team.allreduce(np.array([samples, samples * loss], np.float64))
        if total:
            self.update()
        return (float(loss / total) if total else 0.0), int(total)

    # Whole weights, for as long as they are needed

    def drop(self, part: DividedPart) -> None:
        if part.space is not None and part.whole is not None:
            part.whole = None
            part.space.drop()
            self._use(-part.n)

    def _gather(self, part: DividedPart) -> Gathering:
        """Begin to gather the whole weights of a part, of which this rank has its slice."""
        whole = part.space.array
        self._use(part.n)
        whole[part.mine] = part.weights
        self._count(part, gathers=True)
        return Gathering(self.team, whole, part.edges)

    def _gather_new(self) -> None:
        parts = [part for part in self.parts if part.n]
        on_their_way = [Gathering(self.team, part.weights, part.edges) for part in parts]
        for one in on_their_way:
            one.wait()

    def _use(self, elements: int) -> None:
        self._in_use += elements * self.dtype.itemsize
        self.most_in_use = max(self.most_in_use, self._in_use)

    def _count(self, part: DividedPart, gathers: bool = False) -> None:
        """Count what a reduce-scatter sends, all but this rank's slice, or (`gathers`) what an
        allgather does, this slice to all others."""
        rank, others = self.team.rank, self.team.size - 1
        own = part.edges[rank + 1] - part.edges[rank]
        self.sent += (own * others if gathers else part.n - own) * self.dtype.itemsize


def check_divisible(optimizer: Optimizer) -> None:
    """Raise ValueError if ranks can't divide the optimizer's state."""
    if optimizer.undivided or optimizer.whole or optimizer.of_model:
        raise ValueError(
            f"{optimizer.in_words} needs all weights at once, so ranks can't divide its state: "
            "use an optimizer such as adam"
        )
