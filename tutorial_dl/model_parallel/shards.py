"""`Shards`: what each rank holds of a model whose vectors are divided over a team, part by part.

A part is a layer or a few, whose weights are one vector; rank r owns slice r of it. `Shards` keeps
the slices, gathers whole weights ahead of their use and drops them after it, reduce-scatters a
part's gradient, and updates the slices. What computes with the weights is elsewhere: zero.py and
sharded.py.

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
from numba_kernels.team.team import Team
from tutorial_dl.model_parallel.shard_parts import Gathering, Part, Space
from tutorial_dl.replica.base import Segment

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
            at a time beyond what `held` counts; not while it saved the model.
        state: The optimizer's: its `step`, the updates so far. The averages are in the parts.
    """

    def __init__(self, team: Team, stage: int, dtype: Any) -> None:
        if stage not in STAGES:
            raise ValueError(f"stage must be 0, 1, 2 or 3, got {stage}")
        self.team, self.stage, self.dtype = team, stage, np.dtype(dtype)
        self.parts: list[Part] = []
        self.n = self.sent = self.most_in_use = self._in_use = 0
        self.clip_norm: float | None = None
        self._scratch: Space | None = None

    def add(self, segments: Sequence[Segment], whole: np.ndarray, **memory: np.ndarray) -> Part:
        """Add a part with these weights; in stage 3 this rank keeps a copy of its slice of them.

        `memory`: where the slices of `weights` (stage 3) and `gradient` (2 and 3) shall lie.
        """
        part = Part(self, segments, whole, **memory)
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

    def weights(self) -> np.ndarray:
        """All weights (n,), on every rank. Collective."""
        return self.joined([part.weights for part in self.parts], self.stage < 3)

    def slots(self) -> np.ndarray:
        """The whole state of the optimizer (k, n), on every rank. Collective."""
        return self.joined_slots()

    def joined(
        self, own: Sequence[np.ndarray], whole: bool, first: int = 0, last: int | None = None
    ) -> np.ndarray:
        """Elements [first, last) of a vector of the whole model. Collective.

        Each rank may ask for another stretch; it needs memory for that, and for one part.

        Args:
            own: What this rank has of it: for each part its slice, or all of it if `whole`.
        """
        last = self.n if last is None else last
        found = np.empty(max(last - first, 0), self.dtype)
        for part, mine in zip(self.parts, own, strict=True):
            low, high = max(first, part.offset), min(last, part.offset + part.n)
            all_of_it = mine if whole else self._whole(part, mine)
            if low < high:
                found[low - first : high - first] = all_of_it[
                    low - part.offset : high - part.offset
                ]
        return found

    def joined_slots(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """Columns [first, last) of the optimizer's whole state (k, n). Collective."""
        last = self.n if last is None else last
        rows = np.empty((self.optimizer.slots, max(last - first, 0)), self.dtype)
        for k, row in enumerate(rows):
            own = [part.state.slots[k] for part in self.parts]
            row[:] = self.joined(own, self.stage == 0, first, last)
        return rows

    def take(self, weights: Any, slots: Any = None, updates: int = 0) -> None:
        """Take this rank's slices of weights, and of the optimizer's state.

        Args:
            weights, slots: Functions of (first, last) that return these elements of the whole
                model's vector (last - first,), and of the state (k, last - first).
            updates: Updates made so far.
        """
        for part in self.parts:
            at = part.offset
            part.weights[:] = weights(at + part.keeps.start, at + part.keeps.stop)
            if slots is not None:
                part.state.slots[:] = slots(at + part.mine.start, at + part.mine.stop)
        self.count_from(updates)

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

    def agree(self) -> None:
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
        shares of two steps, which only a checkpoint (`take`) makes one model again.
        """
        done = self.state.step
        steps = self.team.allreduce(np.array([done, -done]), "max")
        if steps[0] != -steps[1]:
            raise TeamError(
                f"some ranks have made {-steps[1]} updates, others {steps[0]}: load a checkpoint"
            )

    # A step

    def ahead(self, parts: Sequence[Part], keeps_last: bool = False) -> Iterator:
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

    def gradient_of(self, part: Part) -> np.ndarray:
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

    def reduce(self, part: Part, gradient: np.ndarray, adds: bool = False) -> None:
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

    def __call__(self, loss: float, samples: int) -> tuple[float, int]:
        """The update of a strategy: returns (mean loss, samples) of all ranks. Collective."""
        total, loss = self.team.allreduce(np.array([samples, samples * loss], np.float64))
        if total:
            self.update()
        return (float(loss / total) if total else 0.0), int(total)

    # Whole weights, for as long as they are needed

    def gather(self, part: Part) -> np.ndarray:
        """The whole weights of a part, until `drop`; not counted in `most_in_use`. Collective."""
        if self.stage < 3 or not part.n:
            return part.weights
        most = self.most_in_use
        part.whole = self._gather(part)
        self.most_in_use = most
        return part.whole.wait()

    def drop(self, part: Part) -> None:
        if part.space is not None and part.whole is not None:
            part.whole = None
            part.space.drop()
            self._use(-part.n)

    def _gather(self, part: Part) -> Gathering:
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

    def _whole(self, part: Part, own: np.ndarray) -> np.ndarray:
        whole = np.empty(part.n, own.dtype)
        whole[part.mine] = own
        return Gathering(self.team, whole, part.edges).wait()

    def _use(self, elements: int) -> None:
        self._in_use += elements * self.dtype.itemsize
        self.most_in_use = max(self.most_in_use, self._in_use)

    def _count(self, part: Part, gathers: bool = False) -> None:
        """Count what a reduce-scatter sends, all but this rank's slice, or (`gathers`) what an
        allgather does, this slice to all others."""
        rank, others = self.team.rank, self.team.size - 1
        own = part.edges[rank + 1] - part.edges[rank]
        self.sent += (own * others if gathers else part.n - own) * self.dtype.itemsize


def check_divisible(optimizer: Optimizer) -> None:
    """Raise ValueError if ranks can't divide the optimizer's state."""
    if optimizer.undivided:
        raise ValueError(
            f"{optimizer.in_words} needs all weights at once, so ranks can't divide its state: "
            "use an optimizer of numba_kernels.optimizers"
        )
