"""Bench: the whole synchronous step of Keras networks on p ranks.

A step is everything that a step of the Trainer does: batch in, gradient, reduction, update. It is
measured in turn with these peers, in the same processes:

- the gradient alone: a TensorFlow function from batch to loss and gradients, nothing else, on every
  rank at once. The time that a step takes beyond this is the cost of training together.
  TensorFlow computes it the same way as in our step: by the faster of its graph and XLA, which the
  Trainer finds out by measuring, too.
- Keras in one process, on a batch as large as a rank's: `train_on_batch`, as its users call it, and
  the same step without overhead, a compiled `tf.function`. p ranks learn from p times as many
  samples per step.

Every rank, and plain Keras, has one thread on one core. While Keras takes its turn, the other ranks
sleep.
"""

from functools import partial
from itertools import cycle

from numba_kernels.bench.rows import row
from numba_kernels.bench.step import moved
from numba_kernels.bench.timing import copy_bandwidth, interleaved, sleeping_barrier
from numba_kernels.optimizers import Adam
from numba_kernels.team.team import Team
from tutorial_dl import replica, strategies
from tutorial_dl.bench import NETWORKS, Network
from tutorial_dl.replica.consistency import check_same_weights
from tutorial_dl.replica.keras.graphs import keras, tf
from tutorial_dl.runtime.compilation import faster

BATCHES = 16  # different batches, in turn
GRADIENT = "the gradient alone"
PLAIN = ("Keras train_on_batch, 1 process", "Keras compiled step, 1 process")
# Shares of the time: the MLP gets more, because its ratios are hardest to measure.
SHARES = {"mlp": 0.4, "cnn": 0.3, "lstm": 0.3}


def rows(seconds: float, full: bool) -> list[dict]:
    """The rows of one start: each network against Keras and against its gradient alone."""
    team = Team()
    bandwidth = copy_bandwidth(team.barrier)
    return [
        one
        for name, network in NETWORKS.items()
        for one in rows_of(team, name, network, seconds * SHARES[name], bandwidth)
    ]


def rows_of(team: Team, name: str, network: Network, seconds: float, bandwidth: float):
    batches = cycle(network.batches(BATCHES, seed=team.rank))
    ours = strategies.Synchronous(team)
    mine = build(network)
    model = replica.of(mine)
    way, *_ = faster(team, model, "gradient", next(batches))
    model.compilation.choose("gradient", way, network.samples)
    ours.attach(model, Adam())
    n = mine.count_params()
    nothing = dict.fromkeys(PLAIN, lambda batch: None)  # for the other ranks
    plain = plain_steps(network, build(network), build(network)) if team.rank == 0 else nothing
    alone = graph(mine, network, list, by_xla=way == "xla")
    # In this order, no call finds the caches filled by the same call just before.
    calls = [lambda step=step: step(next(batches)) for step in (ours.step, alone, *plain.values())]
    times = interleaved(calls, partial(sleeping_barrier, team.comm), seconds).T
    check_same_weights(team, model)
    samples = network.samples * team.size
    key = (f"training step, {name}", team.size, {"parameters": n}, f"adam, by {way}", times[0])
    of_peers = (samples, network.samples, network.samples)
    found = []
    for peer, theirs, of_peer in zip((GRADIENT, *PLAIN), times[1:], of_peers, strict=True):
        one = row(*key, peer, theirs, moved(team.size, n, Adam()), bandwidth)
        found.append(one | {"network": name, "samples": samples, "peer_samples": of_peer})
    return found


def build(network: Network):
    """The network, compiled in the usual way; the same weights on every rank."""
    keras.utils.set_random_seed(1)
    model = network.build(keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    return model


def graph(model, network: Network, finish, by_xla: bool = False):
    """A function batch -> loss: a TensorFlow graph of nothing but the gradient and `finish`."""

    @tf.function(jit_compile=by_xla or None)
    def of_batch(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        weights = [v.value for v in model.trainable_weights]
        return loss, finish(tape.gradient(loss, weights))

    concrete = of_batch.get_concrete_function(
        # With a fixed number of samples, as Keras traces, which makes recurrent networks faster.
        tf.TensorSpec((network.samples, *network.shape), tf.float32),
        tf.TensorSpec((network.samples,), tf.int64),
    )
    return lambda batch: float(concrete(tf.constant(batch[0]), tf.constant(batch[1]))[0])


def plain_steps(network: Network, usual, bare) -> dict:
    """Keras in one process: `usual` as users call it, `bare` without overhead around the step."""
    bare.optimizer.build(bare.trainable_weights)
    update = graph(bare, network, lambda g: bare.optimizer.apply(g, bare.trainable_weights))
    return dict(zip(PLAIN, (lambda batch: usual.train_on_batch(*batch), update), strict=True))
