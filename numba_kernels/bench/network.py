"""Bench: the whole synchronous step of a Keras network on p ranks, against plain Keras.

Batch in, gradient, reduction, update: all that a step is, with 32 samples for each rank, so that p
ranks learn from p times as many samples a step as plain Keras on one process. Every rank, and plain
Keras, has one thread on one core. While Keras takes its turn, the other ranks sleep.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import cycle

import numpy as np
from mpi4py import MPI

from ..fused import Step
from ..optimizers import Adam
from ..team import Team
from ..window import aligned
from .peers import keras_on_tensorflow
from .rows import row
from .step import moved
from .timing import copy_bandwidth, interleaved

BATCH, BATCHES = 32, 16  # samples a rank and step; different ones, in turn
LINE = 16  # float32 in a cache line
PLAIN = ("Keras train_on_batch, 1 process", "Keras bare graph, 1 process")
GRADIENT = "the gradient alone"


def rows(seconds: float, full: bool) -> list[dict]:
    """Rows against plain Keras's step, and against the gradient alone; none without Keras."""
    if keras_on_tensorflow() is None:
        return []
    team = Team()
    bandwidth = copy_bandwidth(team.barrier)
    rng = np.random.default_rng(team.rank)
    x = rng.random((BATCHES, BATCH, 784), np.float32)
    y = rng.integers(0, 10, (BATCHES, BATCH))
    batches = cycle(zip(x, y, strict=True))

    ours = AliasedNetwork(team)
    nothing = dict.fromkeys(PLAIN, lambda x, y: None)  # what the other ranks do meanwhile
    plain = plain_steps(mlp(), mlp()) if team.rank == 0 else nothing
    steps = {**plain, GRADIENT: ours.gradient_of}
    calls = [lambda step=step: step(*next(batches)) for step in (ours.step, *steps.values())]
    times = interleaved(calls, partial(sleeping_barrier, team.comm), seconds).T
    ours.check()
    adam, samples = Adam(), BATCH * team.size
    return [
        row(
            "whole training step of an MLP",
            team.size,
            {"parameters": ours.size},
            "fused adam",
            times[0],
            peer,
            theirs,
            moved(team.size, ours.size, adam),
            bandwidth,
        )
        | {"samples": samples, "peer_samples": BATCH if peer in PLAIN else samples}
        for peer, theirs in zip(steps, times[1:], strict=True)
    ]


def mlp():
    """784-512-512-10, as everybody writes it, and compiled."""
    keras, _ = keras_on_tensorflow()
    dense = keras.layers.Dense
    model = keras.Sequential(
        [keras.Input((784,)), dense(512, "relu"), dense(512, "relu"), dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def graph(model, finish):
    """A TensorFlow graph of (x, y) -> loss, finish(gradients): nothing in it but the step."""
    _, tf = keras_on_tensorflow()

    @tf.function
    def of_batch(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        weights = [v.value for v in model.trainable_weights]
        return loss, finish(tape.gradient(loss, weights))

    concrete = of_batch.get_concrete_function(
        tf.TensorSpec((None, 784), tf.float32), tf.TensorSpec((None,), tf.int64)
    )
    return lambda x, y: concrete(tf.constant(x), tf.constant(y))


def plain_steps(usual, bare) -> dict:
    """Keras in one process: a model as its users call it, one with nothing around the step."""
    bare.optimizer.build(bare.trainable_weights)
    update = graph(bare, lambda g: bare.optimizer.apply(g, bare.trainable_weights))
    steps = (usual.train_on_batch, lambda x, y: float(update(x, y)[0]))
    return dict(zip(PLAIN, steps, strict=True))


class AliasedNetwork:
    """A Keras network whose weights lie in memory of ours, so that `Step` updates them in place.

    Each TensorFlow variable is made to look at its stretch of `parameters` through DLPack, which
    takes memory over, without a copy, where it is aligned to 64 bytes.
    """

    def __init__(self, team: Team):
        _, tf = keras_on_tensorflow()
        self.team, self.model = team, mlp()
        self.variables = [v.value for v in self.model.trainable_weights]
        self.size = sum(int(np.prod(v.shape)) for v in self.variables)
        # Every layer begins a cache line.
        starts = np.cumsum([0] + [-(-int(np.prod(v.shape)) // LINE) * LINE for v in self.variables])
        self.parameters, self.gradient = aligned(starts[-1]), team.empty(int(starts[-1]))
        self.weights, self.gradients = (
            [
                flat[start : start + int(np.prod(v.shape))].reshape(v.shape)
                for start, v in zip(starts, self.variables, strict=False)
            ]
            for flat in (self.parameters, self.gradient)
        )
        for view, variable in zip(self.weights, self.variables, strict=True):
            view[:] = variable.numpy()
            variable.assign(tf.experimental.dlpack.from_dlpack(view.__dlpack__()))
        team.broadcast(self.parameters)
        self.update = Step(team, Adam(), self.parameters, self.gradient)

        self.backpropagate = graph(self.model, list)
        self.check()

    def gradient_of(self, x: np.ndarray, y: np.ndarray) -> tuple[float, int]:
        """Fill `gradient` from a batch; its mean loss, and how many samples it has."""
        loss, gradients = self.backpropagate(x, y)
        for view, gradient in zip(self.gradients, gradients, strict=True):
            np.copyto(view, memoryview(gradient))
        return float(loss), len(x)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        """One synchronous step; the mean loss over all ranks' samples."""
        return self.update(*self.gradient_of(x, y))[0]

    def check(self) -> None:
        """RuntimeError unless TensorFlow works on our memory, and all ranks' weights are equal."""
        for view, variable in zip(self.weights, self.variables, strict=True):
            seen = np.asarray(memoryview(variable.read_value()))
            if seen.ctypes.data != view.ctypes.data:
                raise RuntimeError(f"TensorFlow made a copy of weights {variable.name}")
        first = self.team.broadcast(self.parameters.copy())
        if not np.array_equal(first, self.parameters):
            raise RuntimeError(f"rank {self.team.rank}'s weights differ from those of rank 0")


def sleeping_barrier(comm: MPI.Comm) -> None:
    """A barrier that leaves the core to others: ranks may share it with the one that works."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-4)
