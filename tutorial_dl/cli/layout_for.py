"""`python -m tutorial_dl layout --for MODEL -n N`: ways to cut a Keras model over N ranks.

The model is built and timed on this process alone, on a batch of real data; what N ranks need is
predicted from that (simulate/cuts.py), and nothing is started.
"""

from __future__ import annotations

from typing import Any

from numba_kernels import optimizers
from numba_kernels.allreduce.machine import straight
from tutorial_dl import data as datasets
from tutorial_dl import models
from tutorial_dl.data.elements import samples_of
from tutorial_dl.simulate.cuts import Cut, choice, divisors, propose, size
from tutorial_dl.simulate.steps import copy_bandwidth, median_seconds
from tutorial_dl.words import counted

from .files import print_or_write

MESSAGE = 1e-4  # seconds per sum that is called from a graph, or per message of a pipeline
# A stage keeps what its graph computed on a tape: 1.6 times as slow for four layers of 1,024 units,
# 1.3 times for a gpt of width 256, each cut in two.
STAGE = 1.4
TEXT = ("gpt",)  # models of text


def main(
    *, model: str, ranks: int, data: str | None, batch_size: int, optimizer: str,
    memory: float | None, json: str | None, sequence: bool = False,
) -> None:  # fmt: skip
    """Print the proposals as a table, or as JSON if json is "-"; write the file asked for."""
    models.check(model)
    if model in models.NAMES and model not in models.NETWORKS:
        raise ValueError(
            f"layout --for takes Keras models, {', '.join(models.NETWORKS)} or module:function, "
            f"got {model!r}"
        )
    rule = optimizers.get(optimizer)
    replica, batch = built(model, data or ("text" if model in TEXT else "digits"), batch_size)
    found, seconds, axes = proposals(replica, batch, ranks, rule.slots, sequence)
    best, why = choice(found, None if memory is None else memory * (1 << 30))
    told = {
        "model": model, "ranks": ranks, "batch_size": samples_of(batch),
        "sequence_parallel": sequence,
        "weights": int(replica.parameters.size), "seconds_on_one_rank": seconds,
        "proposals": [as_json(one, axes) for one in found], "proposed": best, "why": why,
    }  # fmt: skip
    print_or_write(told, json, "\n".join(table(told, found, axes)))


def built(model: str, data: str, batch_size: int) -> tuple[Any, Any]:
    """The Replica of a Keras model, and a batch to time it on."""
    dataset = datasets.load(data)
    if isinstance(dataset.train, datasets.Stream):
        raise ValueError(f"layout --for needs samples by number, and data {data!r} are a stream")
    replica = models.build(model, dataset)
    if replica.traits.library != "keras":
        raise ValueError(
            f"layout --for takes Keras models; {model!r} is a {type(replica).__name__}"
        )
    return replica, dataset.train.take(slice(0, min(batch_size, len(dataset.train))))


def proposals(
    replica: Any, batch: Any, ranks: int, slots: int, sequence: bool = False
) -> tuple[list, float, list[str]]:
    """(All cuts over so many ranks, the fastest first; seconds of a gradient on one rank; axes).

    `sequence`: tensor parallelism is its sequence-parallel form.
    """
    from tutorial_dl.model_parallel.keras_costs import Measured

    few = datasets.Data(*batch).take(slice(0, max(1, samples_of(batch) // 8)))
    whole, less = (median_seconds(lambda b=b: replica.compute_gradient(b)) for b in (batch, few))
    measured = Measured(replica, batch, whole, less, samples_of(few))
    # All ranks of a node share its memory.
    machine = straight(MESSAGE, ranks / copy_bandwidth(), 0.0)
    costs = {tensor: measured.costs(tensor, sequence) for tensor in divisors(ranks)}
    itemsize = replica.parameters.itemsize
    no_context = None
    if measured.attends:
        no_context = {parts: measured.no_context(parts) for parts in divisors(ranks)[1:]}
    found = propose(
        costs, ranks, samples_of(batch), machine, slots, itemsize, measured.no_pipeline, no_context,
        STAGE,
    )  # fmt: skip
    return found, whole, [a for a in Cut._fields if measured.attends or a != "context"]


def as_json(one: Any, axes: list[str]) -> dict:
    """A proposal as numbers: bytes and seconds."""
    return {
        "axes": {name: size for name, size in one.cut._asdict().items() if name in axes},
        "memory": one.memory, "bytes_per_rank": one.bytes, "bytes_sent": one.sent,
        "seconds": {k: v for k, v in one.seconds.items() if k != "context" or one.cut.context > 1},
        "seconds_per_step": one.step, "refused": one.refused,
    }  # fmt: skip


def table(told: dict, found: list, axes: list[str]) -> list[str]:
    """The lines for people; what can't be done is below, with its reason."""
    whole = 1e3 * told["seconds_on_one_rank"]
    lines = [
        f"{told['model']}: {counted(told['weights'], 'weight')}; a gradient of "
        f"{counted(told['batch_size'], 'sample')} takes {whole:.3g} ms on one rank",
        f"{' '.join(axes)}  {'weights':>9} {'gradients':>9} "
        f"{'state':>9} {'outputs':>9} {'per rank':>9}  {'sent':>9}  {'ms per step':>11}  mostly",
    ]
    for number, one in enumerate(found):
        if one.refused is not None:
            continue
        cut = " ".join(f"{getattr(one.cut, name):>{len(name)}}" for name in axes)
        parts = [*one.memory.values(), one.bytes]
        sizes = " ".join(f"{size(part):>9}" for part in parts)
        mark = "  <- proposed" if number == told["proposed"] else ""
        lines.append(
            f"{cut}  {sizes}  {size(one.sent):>9}  {1e3 * one.step:>11.3g}  {one.most}{mark}"
        )
    reasons: dict[str, list[str]] = {}
    for one in found:
        if one.refused is not None:
            reasons.setdefault(one.refused, []).append(str(one.cut))
    lines += [f"not {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    lines.append(f"proposed: {told['why']}" if told["proposed"] is not None else told["why"])
    lines.append(
        "Predicted for ranks of one node with a core each; without TensorFlow's own memory, about "
        "0.5 GiB per rank."
    )
    return lines
