"""Bench: training steps of a tensor group, against one rank with the whole model.

The model has four Keras layers of 1,024 units with relu, cut in turn by columns and by rows, so
that each pair is summed once in either pass, and ten outputs, which are not cut. A batch has 1,024
samples, and Adam updates the weights. Measured in turn, in the same processes:

- the whole step, or the gradient alone, on the ranks of the group, until the slowest is done;
- the same on one rank, with the whole model and one thread, while the other ranks sleep.

A turn is a few steps, as in training; the first ones, after some ranks have slept, take longer and
are not counted. T ranks can be T times as fast as one. The limit is that, so `fraction_of_limit` is
the share of the ideal throughput. `parts` says where the rest goes: seconds of a step, mean of the
ranks, by what a recording has (numba_kernels/spans.py).
"""

import time
from functools import partial

import numpy as np

from numba_kernels.bench.rows import row
from numba_kernels.bench.timing import keep_memory, sleeping_barrier
from numba_kernels.optimizers import Adam
from numba_kernels.team.team import Team
from numba_kernels.trace.recording import Recording
from tutorial_dl import replica, strategies
from tutorial_dl.model_parallel.grid import Grid

WIDTH, LAYERS, CLASSES, SAMPLES = 1024, 4, 10, 1024
FIRST, TURN, WARM, ROUNDS, RECORDED = 4, 12, 1, 3, 24
WHAT, ALONE = "tensor parallel", "one rank, whole model"
STEP, GRADIENT = "training step", "gradient"


def rows(seconds: float, full: bool) -> list[dict]:
    """The rows of one start: the whole step, and the gradient alone, against one rank."""
    from tutorial_dl.model_parallel.keras_replica import KerasTensorReplica

    team = Team()
    keep_memory()
    random = np.random.default_rng(1)
    x = random.standard_normal((SAMPLES, WIDTH)).astype(np.float32)
    batch = x, random.integers(0, CLASSES, SAMPLES)
    whole = replica.of(network())
    alone = strategies.Serial(team.split(team.rank))
    alone.attach(whole, Adam())
    grid = Grid(team, tensor=team.size)
    kinds = ("columns", "rows")
    rules = {f"dense_{i}": kinds[i % 2] for i in range(LAYERS)}
    part = KerasTensorReplica(network(), grid, rules)
    together = strategies.Synchronous(team)
    together.attach(part, Adam())
    work = {
        STEP: (partial(alone.step, batch), partial(together.step, batch)),
        GRADIENT: (
            partial(whole.compute_gradient, batch),
            partial(part.compute_gradient, batch),
        ),
    }
    times = {what: ([], []) for what in work}
    end, more = time.perf_counter() + seconds, True
    while more:
        for what, (one, all_of_us) in work.items():
            sleeping_barrier(team.comm)
            times[what][0].append(timed(one) if team.rank == 0 else 0.0)
            sleeping_barrier(team.comm)
            team.barrier()
            slowest = team.allreduce(np.array([timed(all_of_us)]), "max")
            times[what][1].append(float(slowest[0]))
        left = np.array([end - time.perf_counter()])
        rounds = len(times[STEP][0])
        more = rounds < WARM + ROUNDS or team.allreduce(left, "min")[0] > 0
    parts, sums = spans_of_a_step(team, work[STEP][1], part.sums)
    sent = sums * SAMPLES * WIDTH * 4 * 2 * (team.size - 1)
    found = []
    for what, (theirs, ours) in times.items():
        theirs, ours = np.array(theirs[WARM:]), np.array(ours[WARM:])
        key = f"{WHAT}, {what}", team.size, {"parameters": whole.parameters.size}, "adam"
        one = row(*key, ours, ALONE, theirs, sent, 1.0)
        limit = {"limit_us": 1e6 * float(np.median(theirs)) / team.size}
        found.append(one | limit | ({"parts": parts} if what == STEP else {}))
    return found


def network():
    """The model, compiled; the same weights on every rank."""
    from tutorial_dl.replica.keras.graphs import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(WIDTH, "relu", name=f"dense_{i}") for i in range(LAYERS)]
    model = keras.Sequential(
        [keras.Input((WIDTH,)), *layers, keras.layers.Dense(CLASSES, name="out")]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def timed(call) -> float:
    """Seconds of one call, mean of a turn."""
    for _ in range(FIRST):
        call()
    began = time.perf_counter()
    for _ in range(TURN):
        call()
    return (time.perf_counter() - began) / TURN


def spans_of_a_step(team: Team, step, sums) -> tuple[dict[str, float], int]:
    """Seconds of a step by span, mean over the ranks; and its number of sums. Collective.

    What is within another span counts to that alone.
    """
    before = sums.forward + sums.backward
    team.barrier()
    with Recording() as recording:
        for _ in range(RECORDED):
            step()
    inner: dict[str, int] = {}
    open_: list[tuple[str, int]] = []  # spans around the one at hand
    for name, began, ended in recording.spans:
        while open_ and open_[-1][1] <= began:
            open_.pop()
        inner[name] = inner.get(name, 0) + ended - began
        if open_:
            inner[open_[-1][0]] -= ended - began
        open_.append((name, ended))
    every = team.comm.allgather(inner)
    names = sorted({name for one in every for name in one})
    each = {n: sum(one.get(n, 0) for one in every) for n in names}
    seconds = {name: total / 1e9 / RECORDED / team.size for name, total in each.items()}
    return seconds, (sums.forward + sums.backward - before) // RECORDED


def text(rows: list[dict]) -> str:
    """How many times as fast as one rank a group is, and where the time of a step goes."""
    lines = []
    for one in rows:
        if one["what"].startswith(WHAT):
            share = f"{one['fraction_of_limit']:.2f} of the ideal"
            lines.append(f"{one['what']:44s}{one['ratio']:7.2f} times as fast as one rank, {share}")
            if "parts" in one:
                each = (f"{name} {1e3 * s:.1f}" for name, s in one["parts"].items())
                lines.append(f"  milliseconds of a step: {', '.join(each)}")
    return "\n".join(lines)
