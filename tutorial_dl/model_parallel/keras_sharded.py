"""`ShardedReplica`: data parallelism with gradients, and in stage 3 also weights, divided (ZeRO).

    team = Team()
    replica = ShardedReplica(model, team, stage=3)      # of a Keras model
    Trainer(replica, data).fit(5)

The model is cut into groups of layers, as a pipeline cuts it into stages (keras_stages.py). Every
rank computes all of them, for its share of the batch:

    forward    group by group; in stage 3, the next group's weights are gathered meanwhile, and
               those of the one before are dropped
    backward   the same, from the last group on; when a group's gradient is complete, it is
               reduce-scattered, and each rank keeps its slice
    update     (shards.py) of this rank's slices; in stage 2, gather the new weights

What a rank holds between two steps is `shards.held()`; within a step, also the activations, the
gradient of one group, in stage 3 the weights of two groups, and what TensorFlow has for a moment:
another copy of a group's gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from numba_kernels.optimizers.base import Optimizer
from numba_kernels.shared.window import aligned
from numba_kernels.spans import span
from numba_kernels.team.team import Team
from tutorial_dl import replica as replicas
from tutorial_dl.data.dataset import Data, each_array, share
from tutorial_dl.data.elements import samples_of
from tutorial_dl.model_parallel.keras_checks import check_sharded
from tutorial_dl.model_parallel.keras_head import KerasHead
from tutorial_dl.model_parallel.keras_stages import KerasParts
from tutorial_dl.model_parallel.shards import Shards, check_divisible
from tutorial_dl.model_parallel.stages import Parts
from tutorial_dl.replica.base import Batch, LossNotFinite, Replica, Segment, Traits
from tutorial_dl.replica.layers import At
from tutorial_dl.replica.proxy import Passed, check_times

GROUPS = 16  # a group has at most 1/16 of the weights, or one layer


class ShardedReplica(Replica):
    """A model of which each rank of `team` keeps slices. Making it is collective.

    Args:
        model: The whole model, the same on every rank: a compiled Keras model, functional or
            sequential. Use it through this replica from now on.
        team: The ranks that train it together.
        stage: Of ZeRO: 2 divides gradients and the optimizer's state, 3 also weights.

    Attributes:
        parameters: In stage 2 all weights, in stage 3 this rank's slices, one after the other.
        gradient: This rank's slices of the gradient of the whole batch.
        shards: What this rank holds, and has sent.

    Raises:
        ValueError: If the model can't be computed so, with the layer's name and what would work.
    """

    def __init__(self, model: Any, team: Team, stage: int = 3) -> None:
        if stage not in (2, 3):
            raise ValueError(
                f"stage must be 2 or 3, got {stage}: strategies.Synchronous does 0 and 1"
            )
        self.team, self.inner = team, replicas.of(model)
        check_sharded(self.inner, stage)
        self.parts = KerasParts(self.inner, f"shard {stage}")
        self.head = KerasHead(self.parts)
        self.model, self.dtype = self.inner.model, self.inner.dtype
        given = self.inner.traits
        self.traits = Traits(
            library=given.library,
            saved_as=given.saved_as,
            saves_optimizer=given.saves_optimizer,
            measures_together=stage == 3,
            refuses_xla="its ranks communicate while they compute a gradient",
            counts_training=given.counts_training,
            checks_gradient=True,
            tries_out=True,
        )
        self.times = 1  # micro-batches per batch
        places = groups(self.parts)
        self.stages = [self.parts.stage(*bounds) for bounds in pairwise(places)]
        for one in self.stages:
            one.apart = False  # gradients of inputs and of weights are computed together
        self._divide(stage)
        self.holding = replace(
            self.shards.holding(self.parts.segments, of_weights=True),
            gradient=self.shards.holding(self.parts.segments),
        )

    def _divide(self, stage: int) -> None:
        """Move the weights to where each rank keeps them: those of rank 0's model."""
        team, whole = self.team, self.inner.parameters
        sizes = [one.size for one in self.stages]
        own = [high - low for low, high in map(team.slice_of, sizes)]
        gradient = aligned(sum(own), self.dtype)
        parameters = aligned(sum(own), self.dtype) if stage == 3 else whole
        self.shards = Shards(team, stage, self.dtype)
        at = first = 0
        for one, size, mine in zip(self.stages, sizes, own, strict=True):
            weights = whole[first : first + size]
            if team.size > 1 and size:
                team.broadcast(weights)
            here = slice(at, at + mine)
            memory = {"gradient": gradient[here]}
            if stage == 3:
                memory["weights"] = parameters[here]
            self.shards.add(one.segments, weights, **memory).layer = one
            first, at = first + size, at + mine
        # Only now, as the memory of whole weights goes when nothing refers to it any more
        self._hold(parameters, gradient)
        for part in self.shards.parts:
            whole_weights = part.weights if part.space is None else part.space.array
            part.layer.hold(whole_weights, self.shards.scratch(part.n))
        self.inner.gradient = np.zeros(0, self.dtype)
        if stage == 3:
            self.inner.parameters = np.zeros(0, self.dtype)

    @property
    def stage(self) -> int:
        return self.shards.stage

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Those of `parameters`; none in stage 3, in which slices begin and end within layers."""
        return self.parts.segments if self.stage == 2 else ()

    def update_by(self, optimizer: Optimizer, clip_norm: float | None) -> Shards:
        """Make the optimizer's state; returns what makes updates."""
        check_divisible(optimizer)
        self.shards.optimize_by(optimizer, clip_norm)
        return self.shards

    def place(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        raise ValueError("the vectors of a ShardedReplica can't move: use strategy 'synchronous'")

    # Gradients

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """Fill `gradient` with the slices of the whole batch's gradient. Collective.

        Returns the mean loss of this rank's samples, and their number, which may be 0.

        Raises:
            FloatingPointError: If this rank's loss or gradient is not finite; before any exchange
                that would spread it.
        """
        self.shards.reset()
        samples = samples_of(batch)
        total = int(self.team.allreduce(np.array([samples], np.float64))[0])
        if total == 0:
            self.gradient[:] = 0
            return 0.0, 0
        loss = 0.0
        for piece in range(self.times):
            part = batch
            if self.times > 1:
                part = Data(*batch).take(share(samples, piece, self.times))
            loss += self._add_gradient(part, total, first=piece == 0)
        return (loss / samples if samples else 0.0), samples

    def _add_gradient(self, batch: Batch, total: int, first: bool) -> float:
        """Add the gradient of a micro-batch to that of those before; returns its sum of losses.

        `total`: the samples of the whole batch, of all ranks.
        """
        samples = samples_of(batch)
        y, saved = self._forward(batch if samples else None, training=True)
        loss, gy = 0.0, None
        if samples:
            loss, gy = self.head.loss(y, batch)
            if not isfinite(loss):
                raise LossNotFinite(f"the loss is {loss}")
            gy = [g * self.dtype.type(samples / total) for g in gy]
        del y
        self._backward(saved, gy, first)
        return loss * samples

    def accumulate(self, times: int) -> None:
        """From now on, compute this rank's share of a batch in so many micro-batches.

        Their gradients are added up in its slices, so it needs no vector as long as the model.
        """
        check_times(times)
        self.times = times

    def _forward(self, batch: Batch | None, training: bool = False) -> tuple[list, list]:
        """The outputs, and what backward passes need; without a batch, only take part."""
        saved = []
        x = None if batch is None else self.head.inputs(batch)
        for part, _ in self.shards.ahead(self.shards.parts, keeps_last=training):
            if x is not None:
                with span("forward"):
                    x, one = part.layer.forward(x, At(training=training))
                if training:
                    saved.append(one)
        return x, saved

    def _backward(self, saved: list, gy: list | None, first: bool) -> None:
        shards = self.shards
        for part, _ in shards.ahead(shards.parts[::-1]):
            gradient = shards.gradient_of(part)
            if gy is not None:
                with span("backward"):
                    one = saved.pop()
                    gy, kept = part.layer.backward_inputs(one, gy)
                    part.layer.backward_weights(one, kept)
                    del one, kept
                if not isfinite(np.dot(gradient, gradient)):
                    raise FloatingPointError("the gradient is not finite")
            shards.reduce(part, gradient, adds=not first)

    gradient_is_finite = True  # checked before each exchange

    # Evaluation: in stage 3 the ranks compute together, however many batches each has

    def _together(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, list]]:
        """This rank's batches with samples, each with the model's outputs. Collective."""
        several = self.stage == 3 and self.team.size > 1
        it = iter(batches)
        while True:
            batch = next(it, None)
            left = np.array([batch is not None], np.float64)
            if several:
                self.team.allreduce(left, "max")
            if not left[0]:
                return
            has_samples = batch is not None and samples_of(batch) > 0
            y, _ = self._forward(batch if has_samples else None)
            if has_samples:
                yield batch, y

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        return self.head.measure(self._together(batches))

    def predict(self, x: Any) -> Any:
        """The model's outputs. In stage 3 collective: all ranks call it equally often."""
        return self.head.outputs(self._forward((x, ()))[0])

    def predictions(self, inputs: Iterable[Any], one: Any) -> list[Any]:
        parts = [self.head.outputs(y) for _, y in self._together((x, ()) for x in inputs)]
        # Collective, so that a rank without samples knows what outputs look like
        like = self.predict(one)
        return parts or [each_array(lambda a: a[:0], like)]

    def try_out(self, batch: Batch, shared: bool, by_team: bool = True) -> None:
        self.inner.check_batch(batch, shared)

    # The model's own
    own_optimizer, metrics_of, state, random, trained = (Passed() for _ in range(5))

    def save(self, path: Path | str, *trained: Any, parameters: np.ndarray | None = None) -> None:
        """Write the whole model, as its own replica does.

        Args:
            parameters: The whole model's, in stage 3; in stage 2 each rank has them.
        """
        parts = [part for part in self.shards.parts if part.space and parameters is not None]
        try:
            for part in parts:
                part.space.array[:] = parameters[part.offset : part.offset + part.n]
            self.inner.save(path, *trained)
        finally:
            for part in parts:
                part.space.drop()


def groups(parts: Parts, most: int | None = None) -> list[int]:
    """The layers at which groups begin, and the number of layers at the end.

    A group has at most `most` weights, or a single layer with weights and those without behind it.

    >>> class Four(Parts):
    ...     names = ["a", "b", "relu", "c"]
    ...     def weights_before(self, layer): return [0, 10, 20, 20, 90][layer]
    >>> groups(Four()), groups(Four(), 20)
    ([0, 3, 4], [0, 3, 4])
    >>> groups(Four(), 10)
    [0, 1, 3, 4]
    """
    starts = [parts.weights_before(i) for i in range(len(parts.names) + 1)]
    if most is None:
        most = max(starts[-1] // GROUPS, *(high - low for low, high in pairwise(starts)))
    places = [0]
    for layer, (low, high) in enumerate(pairwise(starts)):
        if high > low > starts[places[-1]] and high - starts[places[-1]] > most:
            places.append(layer)
    return [*places, len(parts.names)]
