"""Bench: what a rank holds of a Keras model while ranks divide it; a part of sharding.py.

A network of equal dense layers is trained with Adam by one rank without any division, and by N
ranks in stages 2 and 3. Every rank builds the whole model first (`making`); `most` is the most
private memory from then on. From both, what Python and TensorFlow take without a model is
subtracted. A forked rank would share that with others, and so would be told less.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.sharding import STEPS, Most, largest, private
from numba_kernels import optimizers
from numba_kernels.team.team import Team
from tutorial_dl import replica as replicas
from tutorial_dl import strategies
from tutorial_dl.model_parallel import ShardedReplica
from tutorial_dl.model_parallel.zero import formulas

WIDTH, LAYERS, SAMPLES = 2048, 12, 64


def rows(stage: float, full: bool) -> list[dict]:
    """The row of one start: of this stage (where other benches have seconds)."""
    return [trained(Team(), int(stage))]


def trained(team: Team, stage: int, width: int = WIDTH, layers: int = LAYERS) -> dict:
    """Train a few steps; the largest numbers of any rank."""
    from tutorial_dl.replica.keras.graphs import keras

    one_step(team.split(team.rank), 0, keras, 8, 2)  # loads what TensorFlow loads once
    before, began = private(), time.perf_counter()
    with Most() as making:
        replica, strategy = made(team, stage, keras, width, layers)
    ready = time.perf_counter()
    with Most() as most:
        losses = steps(team, strategy, width)
    ended = time.perf_counter()
    if stage < 2:
        state = strategy.state.slots.nbytes
        held = {
            "weights": replica.parameters.nbytes, "gradients": replica.gradient.nbytes,
            "state": state, "layers in use": 0,
        }  # fmt: skip
    else:
        held = replica.shards.held() | {"layers in use": replica.shards.most_in_use}
    layer = (width * width + width) * 4
    n = layers * layer // 4
    expected = formulas(n, team.size, stage) | {"layers in use": {0: 0, 2: 1, 3: 3}[stage] * layer}
    numbers = {"making": making.bytes - before, "most": most.bytes - before}
    seconds = {"making": ready - began, "step": (ended - ready) / STEPS}
    return {"what": "keras", "stage": stage, "ranks": team.size, "parameters": n,
            "samples": SAMPLES, "losses": losses, "expected": expected} | largest(
        team, {"held": held, "bytes": numbers, "seconds": seconds}
    )  # fmt: skip


def made(team: Team, stage: int, keras, width: int, layers: int):
    keras.utils.set_random_seed(1)
    chain = [keras.layers.Dense(width, "tanh") for _ in range(layers)]
    model = keras.Sequential([keras.Input((width,)), *chain])
    model.compile(loss="mse")
    if stage < 2:
        replica, strategy = replicas.of(model), strategies.Synchronous(team, shard=stage)
    else:
        replica, strategy = ShardedReplica(model, team, stage), strategies.Synchronous(team)
    strategy.attach(replica, optimizers.get("adam"))
    return replica, strategy


def steps(team: Team, strategy, width: int) -> list[float]:
    x = np.random.default_rng(1).standard_normal((SAMPLES, width), np.float32)
    x = x[slice(*team.slice_of(SAMPLES))]
    return [strategy.step((x, x))[0] for _ in range(STEPS)]


def one_step(team: Team, stage: int, keras, width: int, layers: int) -> None:
    steps(team, made(team, stage, keras, width, layers)[1], width)
