"""`PipelinedReplica`: a model over the ranks of a pipeline, as a Replica of this rank's part.

Strategies see the vectors of the layers that this rank holds. Each rank calls `compute_gradient`
with the same batch, which the schedule cuts into micro-batches:

    gradient of the batch = sum over micro-batches i of (s_i / s) g_i,  s_i of its s samples

so the update is that of one process with the whole model, for any number of micro-batches.

Sequences may be divided, too: rank (s, c) then computes stage s on part c of each sequence. What it
gives goes to rank (s + 1, c), and keys and values go round a ring of the ranks (s, .), which do the
same actions in the same order:

    S x C = 2 x 2    part 0: rank 0 -> rank 2        rings: ranks 0 1, ranks 2 3
                     part 1: rank 1 -> rank 3
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from numba_kernels.shared.window import aligned
from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.pipeline import Pipeline
from tutorial_dl.model_parallel.schedules import Schedule, named
from tutorial_dl.model_parallel.sequences import Sequences
from tutorial_dl.model_parallel.stages import LayeredParts, Parts, cut_at
from tutorial_dl.replica.base import Batch, CompiledOptimizer, Replica, Segment, Traits, plain
from tutorial_dl.replica.holding import Part
from tutorial_dl.replica.layered import LayeredReplica
from tutorial_dl.replica.layers import At
from tutorial_dl.simulate.cuts import balanced

SHORT = 60  # characters of layers' names that an error shows


class PipelinedReplica(Replica):
    """This rank's part of a model that the ranks of `grid.pipe` hold together. Collective.

    Args:
        replica: The whole model, the same on every rank: a LayeredReplica, or a KerasReplica; or a
            KerasTensorReplica or KerasContextReplica of the same grid. Only this rank's part of it
            is kept.
        grid: The ranks; those of `grid.context`, if they are several, have parts of each sequence.
        schedule: A Schedule, or one of the names in `schedules.SCHEDULES`.
        micro_batches: In how many parts a batch is computed, for a named schedule; None: twice the
            number of ranks.
        chunks: Stages per rank, for "interleaved".
        layers: Names of layers, at each of which a stage begins; None: cut by measured cost.
        sample: Inputs of a few samples, to measure the cost on.
        recompute: Keep the inputs of each stage only, and compute its activations again for the
            backward pass: less memory, a third more time.

    Attributes:
        parts: The layers of the whole model; `places` says at which of them stages begin.
        slices: Of each stage on this rank: where it begins and ends in the vectors of the replica
            that was given.
        pipeline: What runs the schedule; see there for what it counts and measures.
        sequences: This rank's part of sequences, if they are divided; it counts the bytes of rings.
    """

    sequences: Sequences | None = None

    def __init__(
        self,
        replica: Replica,
        grid: Grid,
        schedule: Schedule | str = "1f1b",
        micro_batches: int | None = None,
        chunks: int = 1,
        layers: Sequence[str] | None = None,
        sample: Any = None,
        recompute: bool = False,
    ) -> None:
        ranks = grid.pipe.size
        if isinstance(schedule, str):
            schedule = named(schedule, ranks, micro_batches or 2 * ranks, chunks)
        check_sequences(replica, grid)
        self.grid, self.parts = grid, parts_of(replica)
        self.dtype, self._given = self.parts.dtype, replica
        self.sequences = getattr(replica, "sequences", None)
        if layers is not None:
            self.places = cut_at(self.parts, schedule.stages, list(layers))
        else:
            costs = np.array(self.parts.costs(sample), np.float64)
            starts = [self.parts.weights_before(i) for i in range(len(costs) + 1)]
            weights = np.diff(starts).tolist()
            self.places = balanced(weights, grid.team.broadcast(costs).tolist(), schedule.stages)
        bounds = list(pairwise(self.places))
        mine = [schedule.stage(grid.pipe.rank, chunk) for chunk in range(schedule.chunks)]
        stages = [self.parts.stage(*bounds[stage]) for stage in mine]
        self.segments, self._offsets, size = (), [], 0
        for stage in stages:
            moved = (Segment(s.name, s.offset + size, s.shape) for s in stage.segments)
            self.segments += tuple(moved)
            self._offsets.append(size)
            size += stage.size
        # Where each stage's weights lie in the vectors of the replica that was given
        self.ends = [self.parts.weights_before(place) for place in self.places]
        self.slices = [(self.ends[stage], self.ends[stage + 1]) for stage in mine]
        parameters, gradient = (aligned(size, self.dtype) for _ in range(2))
        for (low, high), at in zip(self.slices, self._offsets, strict=True):
            parameters[at : at + high - low] = replica.parameters[low:high]
        boundaries = self.parts.outputs(sample, self.places[1:-1])
        self.pipeline = Pipeline(grid, schedule, stages, boundaries, recompute)
        self.random = self.parts.random
        self.partial: list[Segment] = []
        if replica.holding is None or replica.holding.complete:
            there = [
                Segment(s.name, s.offset + self.ends[number], s.shape)
                for number, stage in zip(mine, stages, strict=True)
                for s in stage.segments
            ]
            held = [Part(*pair) for pair in zip(self.segments, there, strict=True)]
            self.holding = grid.holding(self.parts.segments, self.ends[-1], held)
        else:  # layers are cut, too
            by_name = {part.here.name: part for part in replica.holding.mine}
            held = [by_name[one.name]._replace(here=one) for one in self.segments]
            self.holding = grid.holding(replica.holding.whole, replica.holding.size, held)
            partial = {one.name for one in getattr(replica, "partial", ())}
            self.sums = getattr(replica, "sums", None)
            self.partial = [one for one in self.segments if one.name in partial]
        given = replica.traits
        self.traits = Traits(
            library=given.library,
            saved_as=given.saved_as,
            saves_optimizer=given.saves_optimizer,
            tries_out=True,
        )
        self._hold(parameters, gradient)
        self.parts.forget(mine)
        names = [self.parts.names[first:last] for first, last in bounds]
        grid.name_stages([role(schedule, rank, names) for rank in range(ranks)], self)

    def _hold(self, parameters, gradient):
        super()._hold(parameters, gradient)
        for stage, at in zip(self.pipeline.stages, self._offsets, strict=True):
            here = slice(at, at + stage.size)
            stage.hold(parameters[here], gradient[here])

    @property
    def schedule(self) -> Schedule:
        return self.pipeline.schedule

    def try_out(self, batch: Batch, shared: bool, by_team: bool = True) -> None:
        if self.sequences is not None:
            self._given.check_part(batch)
        self._part(batch)

    def _part(self, batch: Batch) -> tuple[Any, Any]:
        """Inputs and targets, of which this rank takes its part if sequences are divided."""
        batch = plain_of(batch)
        return batch if self.sequences is None else self._given.arrays(batch)[:2]

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """Fill `gradient`; returns (mean loss, samples) on every rank. Collective over the pipe.

        If sequences are divided, it is collective over their ranks, too, and both are means over
        this rank's positions.
        """
        x, y = self._part(batch)
        samples = len(x[0]) if isinstance(x, tuple) else len(x)
        self.gradient[:] = 0
        at = At(training=True)
        if self.random is not None:
            at = At(int(self.random[0]), int(self.random[1]), 0, True)
        sums = self.pipeline.train(x, y, at)
        if self.partial and samples:
            self.sums.complete(self.gradient, self.partial)
        if self.random is not None:  # only now: a step that failed is made again alike
            self.random = self.random + np.array([0, int(samples > 0)])
        loss = np.array([sums.get("loss", 0.0)])
        self._from_the_last(loss)
        return (float(loss[0]) / samples if samples else 0.0), samples

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """As `Replica.measure`; every rank of a pipeline gets what the last stage has found.

        It is over all positions, also if sequences are divided.
        """
        found, samples = {}, 0
        for batch in batches:
            x, y = self._part(batch)
            for name, value in self.pipeline.evaluate(x, y).items():
                found[name] = found.get(name, 0.0) + value
            samples += len(x[0]) if isinstance(x, tuple) else len(x)
        numbers = np.array([found.get(name, 0.0) for name in self.parts.metrics])
        self._from_the_last(numbers)
        if self.sequences is not None:
            numbers /= self.sequences.team.size  # a mean over equal parts
        found = {"samples": samples, **dict(zip(self.parts.metrics, numbers.tolist(), strict=True))}
        return found if self.sequences is None else self.sequences.summed(found)

    def predict(self, x: Any) -> np.ndarray:
        """The model's outputs, at all positions, on every rank that computes them. Collective."""
        found = self.pipeline.predict(x)
        last = self.grid.pipe.size - 1
        shape = np.zeros(8, np.int64)
        if found is not None:
            shape[: found.ndim + 1] = found.ndim, *found.shape
        self.grid.pipe.broadcast(shape, last)
        if found is None:
            found = np.empty(shape[1 : 1 + shape[0]], self.dtype)
        found = self.grid.pipe.broadcast(np.ascontiguousarray(found, self.dtype), last)
        return found if self.sequences is None else self.sequences.gather(found)

    def _from_the_last(self, numbers: np.ndarray) -> None:
        if self.grid.pipe.size > 1:
            self.grid.pipe.broadcast(numbers, self.grid.pipe.size - 1)

    def own_optimizer(self, given: Any = None) -> CompiledOptimizer | None:
        return self._given.own_optimizer(given)

    def save(self, path: Path | str, *trained: Any, parameters: np.ndarray) -> None:
        """Write the whole model, with these parameters, as its own replica does."""
        self.parts.save(path, parameters, *trained)


def role(schedule: Schedule, rank: int, names: Sequence[Sequence[str]]) -> str:
    """What a rank does, for errors: its stages, with the names of one stage's layers.

    >>> from tutorial_dl.model_parallel.schedules import gpipe, interleaved
    >>> role(gpipe(2, 2), 1, [["embed"], ["dense", "output"]])
    'stage 1: dense, output'
    >>> role(interleaved(2, 2), 1, [["a"], ["b"], ["c"], ["d"]])
    'stages 1, 3'
    """
    mine = [schedule.stage(rank, chunk) for chunk in range(schedule.chunks)]
    if len(mine) > 1:
        return f"stages {', '.join(map(str, mine))}"
    layers = list(names[mine[0]])
    words = ", ".join(layers)
    if len(words) > SHORT:
        words = f"{layers[0]} to {layers[-1]}"
    return f"stage {mine[0]}" + f": {words}" * (len(words) <= SHORT)


def check_sequences(replica: Replica, grid: Grid) -> None:
    """Raise ValueError unless a replica's sequences are divided as the ranks of `grid` are."""
    parts = grid.axes.get("context", 1)
    divided = getattr(replica, "sequences", None) is not None
    if divided and replica.grid is not grid:
        raise ValueError(
            f"this {type(replica).__name__} and its pipeline have two grids: make both with one"
        )
    if parts > 1 and not divided:
        raise ValueError(
            f"{parts} ranks of this grid share each sequence, but a {type(replica).__name__} takes "
            "whole ones: give the pipeline a KerasContextReplica of this grid"
        )


def parts_of(replica: Replica) -> Parts:
    """The layers of a replica that can be cut; ValueError if it can't be."""
    if isinstance(replica, LayeredReplica):
        return LayeredParts(replica)
    if replica.traits.library == "keras":
        from tutorial_dl.model_parallel.keras_stages import KerasParts

        return KerasParts(replica)
    raise ValueError(
        f"a {type(replica).__name__} can't be cut into stages: a pipeline takes Keras models, "
        "models 'transformer' and LayeredReplica"
    )


def plain_of(batch: Batch) -> tuple[Any, Any]:
    """Inputs and targets, refusing weights of samples."""
    if len(batch) > 2:
        raise ValueError("a pipeline takes no weights of samples yet: leave them out")
    return plain(batch) if not isinstance(batch[0], dict) else batch
