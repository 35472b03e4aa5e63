"""What each cut of a model over N ranks costs: what a rank holds and sends, and seconds per step.

For D copies of a model in S stages, sequences in C parts and layers in T slices, N = D S C T. Each
copy computes B / D samples of the batch, in m micro-batches. The slowest stage takes

    computing    m a + k B / (D C)                 a, k: seconds of its layers per call, per sample
    bubble       (S - 1) / m of it, or of all but data
    data         2 (A - 1) / A n b / M             reduce-scatter of the gradient, allgather of the
                                                   weights, of A = D C ranks
    tensor       2 (T - 1) / T e b B / (D C M) + m s L
    context      r v b B / (D C M) + m h r L
    pipeline     c b B / (D C M) + 2 m L           for S > 1

with n weights per rank, e numbers per sample in s sums over ranks, forward and backward, v numbers
per sample in the keys and values of h attentions, which go round a ring r times, c numbers per
sample that go over its boundaries, b bytes per number, M bytes per second over the slowest link of
the ranks concerned, and L seconds per message. A rank holds n weights and gradients, 1 / A of each
of the optimizer's averages, and the outputs of its layers for S - r of m micro-batches (schedule
1f1b, stage r).

Not predicted: waiting for the slowest rank, what overlaps, TensorFlow's own memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

from numba_kernels.allreduce.machine import Machine


class Cut(NamedTuple):
    """Sizes of the axes, outermost first.

    >>> print(Cut(data=2, tensor=4), "on", Cut(data=2, tensor=4).ranks, "ranks")
    data 2 x tensor 4 on 8 ranks
    """

    data: int = 1
    pipeline: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def ranks(self) -> int:
        return prod(self)

    def __str__(self) -> str:
        beyond = [f"{name} {size}" for name, size in self._asdict().items() if size > 1]
        return " x ".join(beyond) or "one rank"


class LayerCost(NamedTuple):
    """A layer on one rank; elements are per sample."""

    name: str
    per_call: float  # seconds, forward and backward
    per_sample: float  # seconds
    weights: float
    kept: float  # elements of outputs, which the backward pass needs
    summed: float = 0  # elements that are summed over ranks, forward and backward together
    sums: int = 0  # in how many sums
    crossing: float = 0  # elements that a cut before this layer would send
    keys: float = 0  # elements of keys and values, of an attention


@dataclass(frozen=True)
class CutCost:
    """What a cut needs.

    Attributes:
        memory: Bytes of the fullest rank: weights, gradients, state, activations.
        sent: Bytes that the rank which sends most gives to others in a step.
        seconds: Of a step, by what they are for.
        refused: Why the model can't be cut so; the rest is then empty.
    """

    cut: Cut
    memory: dict[str, float] = field(default_factory=dict)
    sent: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    refused: str | None = None

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def step(self) -> float:
        return sum(self.seconds.values())

    @property
    def most(self) -> str:
        """What takes the most time."""
        return max(self.seconds, key=self.seconds.__getitem__)


def cost_of(
    cut: Cut,
    layers: Sequence[LayerCost],
    batch: int,
    machine: Machine,
    micro_batches: int = 1,
    ring: int = 0,
    slots: float = 2,
    itemsize: int = 4,
    slower: float = 1.0,
    all_waits: bool = False,
) -> CutCost:
    """The cost of a cut, of the layers as one of T ranks has them.

    Args:
        batch: Samples per update, over all ranks.
        micro_batches: m.
        ring: r, how often keys and values, or their gradients, are passed on.
        slots: Numbers per weight that the optimizer keeps.
        slower: How much longer computing takes than the layers say.
        all_waits: Whether the bubble is a part of all that is done per micro-batch, or only of what
            is computed.

    Raises:
        ValueError: there are fewer layers with weights than stages.
    """
    alike, m = cut.data * cut.context, micro_batches  # ranks with the same weights
    positions = -(-batch // cut.data) / cut.context  # what a rank computes, in whole samples
    sizes, near = cut._asdict() | {"data": alike}, cut.context * cut.tensor
    # Neighbours in a group are 1 apart for tensor, T for context, C T for pipeline.
    spans = {"tensor": cut.tensor, "context": near, "pipeline": near * cut.pipeline}
    spans["data"] = cut.ranks if cut.data > 1 else near
    each = [one.per_call + one.per_sample * positions / m for one in layers]
    memories, sent, times = [], [], []
    for stage, (first, last) in enumerate(
        pairwise(balanced([one.weights for one in layers], each, cut.pipeline))
    ):
        own = layers[first:last]
        total = LayerCost("", *(sum(column) for column in list(zip(*own, strict=True))[1:]))
        held = min(cut.pipeline - stage, m) / m * positions
        memory = {
            "weights": total.weights, "gradients": total.weights,
            "state": slots * total.weights / alike, "activations": held * total.kept,
        }  # fmt: skip
        memories.append({name: value * itemsize for name, value in memory.items()})
        # Forward to the next stage, and gradients back to the one before
        ends = [one.crossing for one in [*layers[last : last + 1], *own[: stage > 0]]]
        rings = ring * m * sum(one.keys > 0 for one in own)
        sends = {  # numbers, and in how many messages
            "tensor": (
                2 * (cut.tensor - 1) / cut.tensor * total.summed * positions,
                total.sums * m,
            ),
            "context": (ring * total.keys * positions, rings),
            "pipeline": (sum(ends) * positions, 2 * m),
            "data": (2 * (alike - 1) / alike * total.weights, 2),
        }
        sends = {a: (n * itemsize, k) if sizes[a] > 1 else (0.0, 0) for a, (n, k) in sends.items()}
        sent.append(sum(nbytes for nbytes, _ in sends.values()))
        seconds = {"computing": slower * (m * total.per_call + positions * total.per_sample)}
        for axis, (nbytes, messages) in sends.items():
            link = machine.link(spans[axis])
            seconds[axis] = messages * link(nbytes / messages) if messages else 0.0
        repeated = sum(seconds.values()) - seconds["data"] if all_waits else seconds["computing"]
        seconds["bubble"] = repeated * (cut.pipeline - 1) / m
        times.append(seconds)

    def whole(numbers: dict[str, float]) -> float:
        return sum(numbers.values())

    return CutCost(cut, max(memories, key=whole), max(sent), max(times, key=whole))


def balanced(weights: Sequence[float], costs: Sequence[float], stages: int) -> list[int]:
    """Where to cut layers into stages: at which layers they begin, and the number of layers.

    Of all cuts, it takes one whose slowest stage is the fastest. Every stage has weights.

    >>> balanced([10, 10, 10, 10], [1, 1, 1, 3], 2)
    [0, 3, 4]
    """
    n, sums = len(weights), [0.0, *accumulate(costs)]
    # A cut before each layer with weights; layers without any stay with those before them.
    places = [i for i in range(1, n) if weights[i] and any(weights[:i])]
    if stages > 1 + len(places):
        raise ValueError(
            f"{stages} stages need as many layers with weights, the model has {1 + len(places)}: "
            f"use at most {1 + len(places)} stages"
        )
    # best[i]: (slowest stage, cuts) of the layers before i; one more stage in each round
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [0])}
    for stage in range(stages):
        found = {}
        for end in [n] if stage == stages - 1 else places:
            ways = [
                (max(slowest, sums[end] - sums[begin]), [*cuts, end])
                for begin, (slowest, cuts) in best.items()
                if begin < end
            ]
            if ways:
                found[end] = min(ways)
        best = found
    return best[n][1]


def propose(
    costs: Mapping[int, Sequence[LayerCost] | str],
    ranks: int,
    batch: int,
    machine: Machine,
    slots: int = 2,
    itemsize: int = 4,
    no_pipeline: str | None = None,
    no_context: Mapping[int, str | None] | None = None,
    stage_factor: float = 1.0,
) -> list[CutCost]:
    """All cuts of a model over `ranks` ranks, the fastest first, those that are refused last.

    A pipeline has 2 S micro-batches, or one per sample. context.py passes keys and values on, or
    their gradients, 3 C - 2 times.

    Args:
        costs: By T, for each divisor of `ranks`: the layers of one of T ranks, or why the model
            can't be cut so.
        batch, machine, slots, itemsize: As for `cost_of`.
        no_pipeline: Why the model can't be a pipeline.
        no_context: By C, for each divisor of `ranks` above 1: why sequences can't be divided over C
            ranks, or None. Without it, cuts with C = 1 only.
        stage_factor: How much longer a stage takes than the same layers in one graph.
    """
    found = []
    for cut in cuts(ranks, no_context is not None):
        layers, share = costs[cut.tensor], -(-batch // cut.data)
        reasons = (
            isinstance(layers, str) and layers,
            cut.context > 1 and no_context[cut.context],
            cut.pipeline > 1 and no_pipeline,
            cut.data > batch and f"{cut.data} copies for {batch} samples",
        )
        try:
            if why := next(filter(None, reasons), None):
                raise ValueError(why)
            m = max(1, min(2 * cut.pipeline, share)) if cut.pipeline > 1 else 1
            ring, slower = 3 * cut.context - 2, stage_factor if cut.pipeline > 1 else 1.0
            found.append(cost_of(cut, layers, batch, machine, m, ring, slots, itemsize, slower))
        except ValueError as error:
            found.append(CutCost(cut, refused=str(error)))
    return sorted(found, key=lambda one: (one.refused is not None, one.step))


def cuts(ranks: int, context: bool = True) -> list[Cut]:
    """All ways to divide `ranks`; with C = 1 only, if not `context`."""
    return [
        Cut(ranks // tensor // parts // stages, stages, parts, tensor)
        for tensor in divisors(ranks)
        for parts in (divisors(ranks // tensor) if context else [1])
        for stages in divisors(ranks // tensor // parts)
    ]


def divisors(n: int) -> list[int]:
    """The numbers that divide n, in order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [d for d in range(1, n + 1) if n % d == 0]


def choice(found: Sequence[CutCost], most_bytes: float | None = None) -> tuple[int | None, str]:
    """The number of the best proposal within `most_bytes` per rank, and why, in words.

    None if no proposal fits.
    """
    able = [one for one in found if one.refused is None]
    fit = [one for one in able if most_bytes is None or one.bytes <= most_bytes]
    if not able:
        return None, "the model can't be cut over so many ranks"
    smallest = min(able, key=lambda one: one.bytes)
    if not fit:
        return None, (
            f"no cut fits {size(most_bytes)} per rank: {smallest.cut} needs the least, "
            f"{size(smallest.bytes)}; use more ranks"
        )
    best = fit[0]
    why = f"{best.cut} is predicted to be the fastest"
    if most_bytes is not None:
        why += f" within {size(most_bytes)} per rank"
    why += f" ({1e3 * best.step:.3g} ms per step, {size(best.bytes)} per rank)"
    if able[0] is not best:
        why += (
            f"; {able[0].cut} is faster ({1e3 * able[0].step:.3g} ms) but needs "
            f"{size(able[0].bytes)}"
        )
    elif smallest is not best:
        why += (
            f"; {smallest.cut} needs the least memory, {size(smallest.bytes)}, and takes "
            f"{1e3 * smallest.step:.3g} ms, most of it for {smallest.most}"
        )
    return list(found).index(best), why


def size(n: float) -> str:
    """Bytes in words: "3.2 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            break
        n /= 1024
    return f"{n:.3g} {unit}"
