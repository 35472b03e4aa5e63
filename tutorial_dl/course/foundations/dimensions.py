"""What a cut of a large transformer over many GPUs needs: memory and seconds, on paper.

N = D S C T ranks: D copies of the model, in S stages, sequences in C parts, layers in T slices.
With n weights, L layers of width d, sequences of t tokens, and m = batch / D sequences per copy,
which a pipeline takes one by one (schedule 1F1B), a rank holds bytes of

    weights, gradients    2 n / (S T) each, in 16 bits
    state                 12 n / (S T D C): float32 weights and Adam's averages, divided over all
                          ranks that have the same weights (ZeRO's stage 1)
    activations           34 t d / (C T) L / S min(m, S)

A step takes these seconds, at f operations per second, and M bytes per second over the slowest link
of a group of ranks; a product of matrices needs 6 operations per weight and token:

    computing    (6 n + 6 L d t) t m / (S C T) / f         the second term: causal attention
    tensor       8 (T - 1) / T  2 t d / C  L m / S / M     4 sums per layer, of 16 bits
    context      12 (C - 1) t d / (C T)  L m / S / M       keys and values; their gradients, too
    pipeline     4 t d m / (C T) / M, in the middle        half of it for S = 2
    bubble       (S - 1) / m of all these
    data         4 (D C - 1) / (D C) n / (S T) / M         gradients, and then weights

Nothing of this overlaps, so it is an upper bound for what is sent. Left out: recomputed activations
(none but within attention), norms, and what the first and the last stage have beyond others.

Activations per layer: Korthikanti et al., arXiv 2205.05198, equation 4 with attention's own matrix
recomputed (section 5). State in 16 and 32 bits: Rajbhandari et al., arXiv 1910.02054. 1F1B and the
placement of axes: Narayanan et al., arXiv 2104.04473.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tutorial_dl.model_parallel.proposing import cut_in_words


class Transformer(NamedTuple):
    layers: int  # L
    width: int  # d
    heads: int
    tokens: int  # of the vocabulary

    @property
    def weights(self) -> int:
        """n: 4 d^2 in attention and 8 d^2 in the MLP of a layer, and the table of tokens.

        >>> Transformer(layers=32, width=4096, heads=32, tokens=50_257).weights
        6648303616
        """
        return 12 * self.layers * self.width**2 + self.tokens * self.width


class Job(NamedTuple):
    length: int  # t, tokens per sequence
    batch: int  # sequences per update, over all ranks


class Machine(NamedTuple):
    node: int  # GPUs per node
    memory: float  # bytes per GPU
    flops: float  # f, operations per second that a GPU reaches
    inside: float  # bytes per second and GPU, between GPUs of a node
    between: float  # the same between nodes


class Cut(NamedTuple):
    """Sizes of the axes, outermost first."""

    data: int = 1
    pipeline: int = 1
    context: int = 1
    tensor: int = 1

    @property
    def ranks(self) -> int:
        return prod(self)

    def __str__(self) -> str:
        return cut_in_words(self._asdict())


class Cost(NamedTuple):
    memory: dict[str, float]  # bytes of the fullest rank, by what they are for
    seconds: dict[str, float]  # of a step, by what they are for

    @property
    def bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def step(self) -> float:
        return sum(self.seconds.values())

    @property
    def most(self) -> str:
        """What takes the most time beside computing."""
        beside = {name: s for name, s in self.seconds.items() if name != "computing"}
        return max(beside, key=beside.__getitem__)


def why_not(cut: Cut, model: Transformer, job: Job) -> str | None:
    """Why a model can't be cut so; None if it can.

    >>> why_not(Cut(tensor=5), Transformer(32, 4096, 32, 50_257), Job(4096, 512))
    'tensor 5: 32 heads can not be divided evenly by 5'
    """
    for name, size, count, what in (
        ("data", cut.data, job.batch, "sequences"),
        ("pipeline", cut.pipeline, model.layers, "layers"),
        ("context", cut.context, job.length, "tokens"),
        ("tensor", cut.tensor, model.heads, "heads"),
    ):
        if count % size:
            return f"{name} {size}: {count} {what} can not be divided evenly by {size}"
    return None


def possible(ranks: int, model: Transformer, job: Job) -> list[Cut]:
    """All cuts over `ranks` ranks.

    >>> len(possible(64, Transformer(32, 4096, 32, 50_257), Job(4096, 512)))
    82
    """
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    found = [
        Cut(ranks // (s * c * t), s, c, t)
        for s in sizes
        for c in sizes
        for t in sizes
        if ranks % (s * c * t) == 0
    ]
    return [cut for cut in found if why_not(cut, model, job) is None]


def slowest_links(cut: Cut, machine: Machine) -> dict[str, float]:
    """Bytes per second of each axis's groups: those of a node if neighbours in ranks lie on one.

    >>> small = Machine(4, 24e9, 150e12, inside=200e9, between=3e9)
    >>> slowest_links(Cut(data=2, pipeline=2, tensor=4), small)["tensor"]
    200000000000.0
    """
    within = {"tensor": cut.tensor, "context": cut.context * cut.tensor}
    within["pipeline"] = within["context"] * cut.pipeline
    # Ranks that differ in data, context or both have the same weights.
    within["data"] = cut.ranks if cut.data > 1 else within["context"]
    return {
        axis: machine.inside if machine.node % span == 0 else machine.between
        for axis, span in within.items()
    }


def cost(cut: Cut, model: Transformer, job: Job, machine: Machine) -> Cost:
    """What a rank holds, and how long a step takes; ValueError if the model can't be cut so."""
    if reason := why_not(cut, model, job):
        raise ValueError(reason)
    data, stages, parts, slices = cut
    alike = data * parts  # ranks with the same weights
    m = job.batch // data
    n = model.weights / (stages * slices)
    layers = model.layers / stages
    tokens = job.length * model.width / parts  # numbers between two layers, per sequence
    memory = {
        "weights": 2 * n,
        "gradients": 2 * n,
        "state": 12 * n / alike,
        "activations": 34 * tokens / slices * layers * min(m, stages),
    }
    operations = 6 * model.weights + 6 * model.layers * model.width * job.length  # per token
    links = slowest_links(cut, machine)
    boundaries = min(stages - 1, 2)  # of a stage in the middle
    each = {
        "computing": operations * job.length / (stages * parts * slices) / machine.flops,
        "tensor": 8 * (slices - 1) / slices * 2 * tokens * layers / links["tensor"],
        "context": 12 * (parts - 1) * tokens / slices * layers / links["context"],
        "pipeline": boundaries * 2 * tokens / slices / links["pipeline"],
    }
    seconds = {name: m * s for name, s in each.items()}
    seconds["bubble"] = (stages - 1) * sum(each.values())
    seconds["data"] = 4 * (alike - 1) / alike * n / links["data"]
    return Cost(memory, seconds)
