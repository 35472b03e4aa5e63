"""What a cut of a large transformer over many GPUs needs: memory and seconds, on paper.

The formulas are those of cuts.py, with these numbers. For L layers of width d, n weights in all,
sequences of t tokens, and f operations per second, a layer has, per sequence,

    per_sample    (6 n + 6 L d t) t / (L T) / f   6 operations per weight and token; the second
                                                  term: causal attention
    weights       n / (L T)
    kept          17 t d / T numbers of 16 bits
    summed        4 t d in 4 sums
    crossing      t d / T
    keys          2 t d / T, which go round a ring 3 (C - 1) times, as keys and values, and as
                  their gradients

A copy takes its m = batch / D sequences one by one (schedule 1F1B). Weights and gradients have 16
bits. The state is 12 bytes per weight: float32 weights and Adam's averages, divided over all ranks
that have the same weights (ZeRO's stage 1).

Nothing of this overlaps, so it is an upper bound for what is sent. Left out: recomputed activations
(none but within attention), norms, and what the first and the last stage have beyond others.

Activations per layer: Korthikanti et al., arXiv 2205.05198, equation 4 with attention's own matrix
recomputed (section 5). State in 16 and 32 bits: Rajbhandari et al., arXiv 1910.02054. 1F1B and the
placement of axes: Narayanan et al., arXiv 2104.04473.
"""

from __future__ import annotations

from typing import NamedTuple

from numba_kernels.allreduce.machine import Curve, Machine

from .cuts import Cut, CutCost, LayerCost, cost_of, cuts


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


def gpus(node: int, memory: float, flops: float, inside: float, between: float) -> Machine:
    """GPUs in nodes of `node`, each with `memory` bytes, that reach `flops` operations per second.

    `inside` a node a GPU sends so many bytes per second to others, and `between` nodes.

    >>> gpus(4, 24e9, 150e12, inside=200e9, between=3e9).link(8)(3e9)  # seconds for 3 GB
    1.0
    """
    near, far = (Curve((0, 1), (0.0, 1 / rate)) for rate in (inside, between))
    free = Curve((0, 1), (0.0, 0.0))
    return Machine(
        0.0, 1 / inside, 0.0, near, near, free, lane=far, single=far, per_node=node, memory=memory,
        flops=flops,
    )  # fmt: skip


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
    return [cut for cut in cuts(ranks) if why_not(cut, model, job) is None]


def cost(cut: Cut, model: Transformer, job: Job, machine: Machine) -> CutCost:
    """What a rank holds, and how long a step takes; ValueError if the model can't be cut so."""
    if reason := why_not(cut, model, job):
        raise ValueError(reason)
    n, layers, between = model.weights, model.layers, job.length * model.width
    operations = (6 * n + 6 * layers * between) * job.length / (layers * cut.tensor)
    layer = LayerCost(
        "layer", 0.0, operations / machine.flops, n / (layers * cut.tensor),
        17 * between / cut.tensor, 4 * between, 4, between / cut.tensor, 2 * between / cut.tensor,
    )  # fmt: skip
    return cost_of(
        cut, [layer] * layers, job.batch, machine, job.batch // cut.data, 3 * (cut.context - 1),
        slots=6, itemsize=2, all_waits=True,
    )  # fmt: skip
