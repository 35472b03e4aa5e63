"""Checks of notebook 19, many dimensions."""

from tutorial_dl.simulate import Cut, CutCost, Job, Transformer, cost, gpus, why_not

from . import NotYet, must_have, whole

# The model, and the exercise's machine, job and largest time per step.
MODEL = Transformer(layers=32, width=4096, heads=32, tokens=50_257)
MACHINE = gpus(node=4, memory=24e9, flops=150e12, inside=200e9, between=3e9)
JOB = Job(length=16_384, batch=32)
RANKS, SECONDS = 32, 8.4


def cut(answer) -> str:
    """The exercise: D, S, C and T for 32 GPUs, such that the model fits, and is fast enough."""
    parts = must_have(answer, 4, "four numbers: data, pipeline, context, tensor")
    sizes = [whole(part, 1, None, name) for name, part in zip(Cut._fields, parts, strict=True)]
    made = Cut(*sizes)
    if made.ranks != RANKS:
        product = " x ".join(map(str, sizes))
        raise NotYet(f"{product} = {made.ranks} ranks, but there are {RANKS} GPUs")
    if why := _wrong(made):
        backwards = Cut(*sizes[::-1])
        if _wrong(backwards) is None:
            raise NotYet(f"the order is data, pipeline, context, tensor; yours means {made}: {why}")
        raise NotYet(why)
    found = _cost(made)
    return f"{made}: {found.bytes / 1e9:.1f} GB per GPU, and {found.step:.1f} s per step"


def _cost(made: Cut) -> CutCost:
    return cost(made, MODEL, JOB, MACHINE)


def _wrong(made: Cut) -> str | None:
    """The first thing that is wrong with a cut; None if it will do."""
    if reason := why_not(made, MODEL, JOB):
        return reason
    found = _cost(made)
    if found.bytes > MACHINE.memory:
        parts = ", ".join(f"{kind} {size / 1e9:.1f}" for kind, size in found.memory.items())
        return (
            f"it does not fit: a GPU would hold {found.bytes / 1e9:.2f} GB and has "
            f"{MACHINE.memory / 1e9:.0f} ({parts})"
        )
    if found.step <= SECONDS:
        return None
    wait = f"it fits, but a step takes {found.step:.1f} s"
    if made.tensor > MACHINE.per_node:
        return (
            f"{wait}: a tensor group of {made.tensor} does not fit on a node of "
            f"{MACHINE.per_node}, so every layer waits for the slow link"
        )
    span = made.context * made.tensor
    if made.context > 1 and span > MACHINE.per_node:
        return (
            f"{wait}: context x tensor = {span} does not fit on a node of "
            f"{MACHINE.per_node}, so keys and values of every layer pass over the slow link"
        )
    beside = {what: seconds for what, seconds in found.seconds.items() if what != "computing"}
    most = max(beside, key=beside.__getitem__)
    return f"{wait}; beside computing, most of it is for {most}: {beside[most]:.1f} s"
