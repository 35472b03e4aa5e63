"""What each cut of a model over N ranks costs, predicted from measurements on one rank.

For D copies of a model in S stages of T ranks each, a batch of B samples and m micro-batches, the
slowest stage takes

    computing    m (a + k B / (D m)) f   a, k: seconds per call, and per sample, of its layers
    bubble       (S - 1) / m times that
    data         2 (D - 1) / D n b / M   reduce-scatter of the gradient, allgather of the weights
    tensor       2 (T - 1) / T e b B / (D M) + m s L
    pipeline     2 c b B / (D M) + 2 m L (S > 1)

with n weights per rank, e numbers per sample in s sums over ranks, forward and backward, c numbers
per sample that go over its boundaries, b bytes per number, M bytes per second, L seconds per
message; f is 1 for S = 1, and how much longer a stage takes than the same layers in one graph. A
rank holds n weights and gradients, n / D of each of the optimizer's averages, and the
outputs of its layers for S - r of m micro-batches (schedule 1f1b, stage r).

Where C ranks share each sequence, k, e, c and the outputs of a rank are 1 / C of these. D C ranks
reduce the gradient and divide the averages. With v numbers per sample in the keys and values of h
attentions,

    context      (3 C - 2) / C v b B / (D M) + m h (3 C - 2) L     context.py counts these messages

Not predicted: messages between nodes, waiting for the slowest rank, TensorFlow's own memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tutorial_dl.model_parallel.stages import Parts, cut


class Cost(NamedTuple):
    """A layer on one rank; elements are per sample."""

    name: str
    per_call: float  # seconds, forward and backward
    per_sample: float  # seconds
    weights: int
    kept: int  # elements of outputs, which the backward pass needs
    summed: int = 0  # elements that are summed over ranks, forward and backward together
    sums: int = 0  # in how many sums
    crossing: int = 0  # elements that a cut before this layer would send
    keys: int = 0  # elements of keys and values, of an attention


class Machine(NamedTuple):
    bytes_per_second: float
    seconds_per_message: float
    stage_factor: float = 1.0  # f


def cut_in_words(axes: Mapping[str, int]) -> str:
    """The axes that are cut, such as "data 2 x tensor 2"."""
    beyond = [f"{name} {size}" for name, size in axes.items() if size > 1]
    return " x ".join(beyond) or "one rank"


@dataclass(frozen=True)
class Proposal:
    """A way to cut a model: what a rank holds, sends, and how long a step takes.

    Attributes:
        axes: {"data": D, "pipeline": S, "tensor": T}; with "context": C where it was asked for.
        memory: Bytes of the fullest rank: weights, gradients, state, activations.
        sent: Bytes that the rank which sends most gives to others in a step.
        seconds: Of a step, by what they are for: computing, bubble, data, tensor, pipeline,
            context.
        refused: Why it can't be done; the rest is then empty.
    """

    axes: dict[str, int]
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
    def name(self) -> str:
        """In words: "data 2 x tensor 2"."""
        return cut_in_words(self.axes)

    @property
    def most(self) -> str:
        """What takes the most time beside computing, or "computing"."""
        return max(self.seconds, key=self.seconds.__getitem__)


def propose(
    costs: Mapping[int, Sequence[Cost] | str],
    ranks: int,
    batch: int,
    machine: Machine,
    slots: int = 2,
    itemsize: int = 4,
    no_pipeline: str | None = None,
    no_context: Mapping[int, str | None] | None = None,
) -> list[Proposal]:
    """All cuts of a model over `ranks` ranks, the fastest first, those that are refused last.

    Args:
        costs: By T, for each divisor of `ranks`: the layers of one of T ranks, or why the model
            can't be cut so.
        batch: Samples per update, over all ranks.
        slots: Numbers per weight that the optimizer keeps.
        no_pipeline: Why the model can't be a pipeline.
        no_context: By C, for each divisor of `ranks` above 1: why sequences can't be divided over C
            ranks, or None. Without it, cuts with C = 1 only.
    """
    found = []
    for axes in cuts(ranks, no_context is not None):
        data, stages, context, tensor = sizes_of(axes)
        refused = None
        if isinstance(costs[tensor], str):
            refused = costs[tensor]
        elif context > 1 and no_context[context] is not None:
            refused = no_context[context]
        elif stages > 1 and no_pipeline is not None:
            refused = no_pipeline
        elif data > batch:
            refused = f"{data} copies for {batch} samples"
        if refused is None:
            try:
                found.append(_cost(axes, costs[tensor], batch, machine, slots, itemsize))
                continue
            except ValueError as error:
                refused = str(error)
        found.append(Proposal(axes, refused=refused))
    return sorted(found, key=lambda one: (one.refused is not None, one.step))


def cuts(ranks: int, context: bool) -> list[dict[str, int]]:
    """The sizes of the axes for each way to divide `ranks`, with an axis `context` or without."""
    found = []
    for tensor in divisors(ranks):
        for parts in divisors(ranks // tensor) if context else [1]:
            for stages in divisors(ranks // tensor // parts):
                axes = {"data": ranks // tensor // parts // stages, "pipeline": stages}
                axes |= {"context": parts} if context else {}
                found.append(axes | {"tensor": tensor})
    return found


def sizes_of(axes: Mapping[str, int]) -> tuple[int, int, int, int]:
    """D, S, C and T of these axes."""
    return axes["data"], axes["pipeline"], axes.get("context", 1), axes["tensor"]


def _cost(
    axes: dict[str, int], layers: Sequence[Cost], batch: int, machine: Machine, slots: int,
    itemsize: int,
) -> Proposal:  # fmt: skip
    data, stages, context, tensor = sizes_of(axes)
    share, copies, turns = -(-batch // data), data * context, 3 * context - 2
    m = max(1, min(2 * stages, share)) if stages > 1 else 1
    positions = share / context  # what a rank computes, in whole samples
    places = cut(
        Layers(layers), stages, [c.per_call + c.per_sample * positions / m for c in layers]
    )
    worst: list[tuple[dict, float, dict]] = []
    for stage, (first, last) in enumerate(pairwise(places)):
        own = layers[first:last]
        weights = sum(one.weights for one in own)
        held = min(stages - stage, m) / m * positions if stages > 1 else positions
        memory = {
            "weights": weights, "gradients": weights, "state": slots * weights / copies,
            "activations": held * sum(one.kept for one in own),
        }  # fmt: skip
        # Forward to the next stage, and gradients back to the one before
        after = layers[last].crossing if last < len(layers) else 0
        across = (after + (own[0].crossing if stage else 0)) * positions * itemsize
        summed = 2 * (tensor - 1) / tensor * sum(one.summed for one in own) * positions * itemsize
        reduced = 2 * (copies - 1) / copies * weights * itemsize
        rings = turns * sum(one.keys for one in own) * positions * itemsize * (context > 1)
        compute = m * sum(one.per_call for one in own)
        compute += positions * sum(one.per_sample for one in own)
        compute *= machine.stage_factor if stages > 1 else 1
        rate, latency, _ = machine
        several = sum(one.sums for one in own) * m * (tensor > 1)
        seconds = {
            "computing": compute,
            "bubble": compute * (stages - 1) / m,
            "data": reduced / rate + 2 * latency * (copies > 1),
            "tensor": summed / rate + several * latency,
            "pipeline": across / rate + 2 * m * latency * (stages > 1),
        }
        if context > 1:
            attentions = sum(one.keys > 0 for one in own)
            seconds["context"] = rings / rate + attentions * m * turns * latency
        numbers = {name: value * itemsize for name, value in memory.items()}
        worst.append((numbers, across + summed + reduced + rings, seconds))
    return Proposal(
        axes,
        max((one for one, *_ in worst), key=lambda one: sum(one.values())),
        max(sent for _, sent, _ in worst),
        max((one for *_, one in worst), key=lambda one: sum(one.values())),
    )


class Layers(Parts):
    """The layers of `Cost`s, to be cut into stages."""

    def __init__(self, layers: Sequence[Cost]) -> None:
        self.names = [one.name for one in layers]
        self._layers = layers

    def weights_before(self, layer):
        return sum(one.weights for one in self._layers[:layer])


def divisors(n: int) -> list[int]:
    """The numbers that divide n, in order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [d for d in range(1, n + 1) if n % d == 0]


def choice(found: Sequence[Proposal], most_bytes: float | None = None) -> tuple[int | None, str]:
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
            f"no cut fits {size(most_bytes)} per rank: {smallest.name} needs the least, "
            f"{size(smallest.bytes)}; use more ranks"
        )
    best = fit[0]
    why = f"{best.name} is predicted to be the fastest"
    if most_bytes is not None:
        why += f" within {size(most_bytes)} per rank"
    why += f" ({1e3 * best.step:.3g} ms per step, {size(best.bytes)} per rank)"
    if able[0] is not best:
        why += (
            f"; {able[0].name} is faster ({1e3 * able[0].step:.3g} ms) but needs "
            f"{size(able[0].bytes)}"
        )
    elif smallest is not best:
        why += (
            f"; {smallest.name} needs the least memory, {size(smallest.bytes)}, and takes "
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
