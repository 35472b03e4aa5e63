"""Bench: samples per second of a pipeline, against one rank with the whole model, and PyTorch.

Layers are those of pipelines.py, in numpy, and in Keras with relu in between; a batch has 16
micro-batches. One step of all is measured in turn, in the same processes:

- the pipeline: the gradient of a batch, by each schedule, until the slowest rank has it;
- *one rank, whole batch*: the same gradient by the whole model on one rank, with one thread, while
  the other ranks sleep;
- *one rank, micro-batches*: the same in as many micro-batches as the pipeline has. What it takes
  longer is the price of smaller products of matrices, which wait more for weights from memory, and
  of adding up gradients; a pipeline pays it also without messages and bubble. It falls with the
  size of micro-batches, so they are four times as large as those of pipelines.py.

S ranks can be S (1 - bubble) times as fast as one. The limit is that, so `fraction_of_limit` is the
share of the ideal throughput. PyTorch takes its turn between two starts (torch_pipeline.py) with
the same weights and inputs, so it must find the same loss and gradient.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import pipelines
from numba_kernels.bench.rows import row
from numba_kernels.bench.timing import keep_memory, sleeping_barrier
from numba_kernels.team.team import Team
from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.pipelined import PipelinedReplica
from tutorial_dl.model_parallel.simulating import simulate
from tutorial_dl.replica.base import Replica

M, SCHEDULES = 16, ("gpipe", "1f1b")
SAMPLES, BLOCKS = 512, 3  # of a micro-batch; per rank
ROUNDS = 3  # at least, after one that warms up
WHAT = "throughput of a pipeline"
WHOLE, MICRO = "one rank, whole batch", "one rank, micro-batches"


def rows(seconds: float, full: bool) -> list[dict]:
    """The rows of one start: each model by each schedule, against one rank in two ways."""
    team = Team()
    keep_memory()
    every = []
    for name, build in MODELS.items():
        every += rows_of(team, name, partial(build, BLOCKS * team.size), seconds / len(MODELS))
    return every


def rows_of(team: Team, name: str, build: Callable[[], Replica], seconds: float) -> list[dict]:
    m, x = M, pipelines.inputs(M, SAMPLES)
    whole = build()
    n = whole.parameters.size
    alone = Grid(team.split(team.rank), 1)
    micro = PipelinedReplica(build(), alone, "1f1b", m, sample=x[:1])
    grid, cuts = Grid(team, team.size), pipelines.cuts(BLOCKS, team.size)
    parts = {
        schedule: PipelinedReplica(build(), grid, schedule, m, layers=cuts, sample=x[:1])
        for schedule in SCHEDULES
    }
    times: dict[str, list[float]] = {one: [] for one in (WHOLE, MICRO, *SCHEDULES)}
    end, more = time.perf_counter() + seconds, True
    while more:
        for one, replica in ((WHOLE, whole), (MICRO, micro)):
            sleeping_barrier(team.comm)
            times[one].append(step(replica, x) if team.rank == 0 else 0.0)
        sleeping_barrier(team.comm)
        for schedule, replica in parts.items():
            team.barrier()
            slowest = team.allreduce(np.array([step(replica, x)]), "max")
            times[schedule].append(float(slowest[0]))
        left = np.array([end - time.perf_counter()])
        more = len(times[WHOLE]) <= ROUNDS or team.allreduce(left, "min")[0] > 0
    found, sent = [], 2 * (team.size - 1) * m * SAMPLES * pipelines.NARROW * 4
    for schedule, replica in parts.items():
        ours, loss = np.array(times[schedule][1:]), replica.compute_gradient((x, x))[0]
        norm = team.broadcast(np.array([np.linalg.norm(replica.gradient)]))[0]
        bubble = simulate(replica.schedule).bubble
        for peer in (WHOLE, MICRO):
            theirs = np.array(times[peer][1:])
            key = f"{WHAT}, {name}", team.size, {"parameters": n}, f"{schedule}, m = {m}"
            one = row(*key, ours, peer, theirs, sent, 1.0)
            limit = 1e6 * float(np.median(theirs)) / (team.size * (1 - bubble))
            more = {"limit_us": limit, "predicted_bubble": bubble}
            found.append(one | more | {"loss": loss, "gradient": float(norm)})
    return found


def step(replica: Replica, x: np.ndarray) -> float:
    """Seconds in which this rank computes its part of a gradient."""
    began = time.perf_counter()
    replica.compute_gradient((x, x))
    return time.perf_counter() - began


def keras_model(blocks: int) -> Replica:
    """The same layers in Keras, with relu between them."""
    from tutorial_dl import replica
    from tutorial_dl.replica.keras.graphs import keras

    keras.utils.set_random_seed(1)
    layers: list[Any] = [keras.Input((pipelines.NARROW,))]
    for block in range(blocks):
        layers.append(keras.layers.Dense(pipelines.WIDE, "relu", name=f"block_{block}"))
        layers.append(keras.layers.Dense(pipelines.NARROW, name=f"block_{block}_back"))
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return replica.of(model)


MODELS = {"numpy": pipelines.model, "Keras": keras_model}


def size() -> dict[str, int]:
    """What torch_pipeline.py needs to know."""
    return {
        "narrow": pipelines.NARROW, "wide": pipelines.WIDE, "samples": SAMPLES, "blocks": BLOCKS,
        "micro_batches": M,
    }  # fmt: skip


def against(rows: list[dict], theirs: dict[str, dict], name: str) -> list[dict]:
    """The rows of numpy's pipeline again, with PyTorch's times in place of their peer's.

    Raises:
        ValueError: If PyTorch has found another loss or gradient.
    """
    found = []
    for one in rows:
        schedule = one["algorithm"].partition(",")[0]
        if one["what"] != f"{WHAT}, numpy" or one["peer"] != WHOLE or schedule not in theirs:
            continue
        other = theirs[schedule]
        for value in ("loss", "gradient"):
            if not np.isclose(one[value], other[value], rtol=1e-4):
                raise ValueError(f"{schedule}: {name} has {value} {other[value]}, not {one[value]}")
        peer_us = [1e6 * t for t in other["seconds"]]
        # The limit is no ideal here: as fast as the peer
        limit = {"limit_us": float(np.median(peer_us))}
        found.append(one | {"peer": name, "peer_us": peer_us} | limit)
    return found


def text(rows: list[dict]) -> str:
    """How many times as fast as its peer a pipeline is, and which share of the ideal that is."""
    lines = [f"{'throughput of pipelines':44s}{'times as fast as':>28s}         share of ideal"]
    for one in rows:
        if one["what"].startswith(WHAT):
            ours = f"{one['what'].removeprefix(WHAT + ', ')}, {one['algorithm']}"
            ideal = one["peer"] in (WHOLE, MICRO)
            share = f"{one['fraction_of_limit']:14.2f}" if ideal else ""
            lines.append(f"{ours:44s}{one['peer']:>28s} {one['ratio']:7.2f} {share}".rstrip())
    return "\n".join(lines) if len(lines) > 1 else ""
