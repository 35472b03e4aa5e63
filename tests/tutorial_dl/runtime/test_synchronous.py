"""p ranks have the same parameters as one process after 50 steps, for any shares."""

import numpy as np
import pytest
from counted_runs import at_step
from rank_tests import with_ranks

from numba_kernels import PeerError
from tutorial_dl import Team, Trainer, models, optimizers, replica, strategies
from tutorial_dl.replica import CurveReplica, DenseReplica, SoftmaxReplica
from tutorial_dl.replica.consistency import DriftError
from tutorial_dl.training import TrainingError, schedules

SAMPLES, BATCH = 182, 20  # the last batch has 2 samples, too few for 3 ranks
RULES = ("sgd", "momentum", "adam", "lars", "lamb")
FEW_RULES = ("momentum", "lamb")  # one by element, and one that needs each layer's norms


def dataset(classes):
    from tutorial_dl import data

    generator = np.random.default_rng(3)
    x = generator.normal(size=(SAMPLES, 7))
    y = generator.integers(0, classes, SAMPLES) if classes else np.tanh(x[:, :1]) + x[:, 1:2]
    part = data.Data.of(x, y)
    return data.Dataset("random", part, part, classes)


def replicas(dtype):
    """(name, replica, dataset) of every numpy replica."""
    from tutorial_dl import data

    def cast(whole):
        part = whole.train
        part = data.Data.of(part.inputs.astype(dtype), (
            part.targets if whole.classes else part.targets.astype(dtype)
        ))  # fmt: skip
        return data.Dataset(whole.name, part, part, whole.classes)

    generator = np.random.default_rng(4)
    x = generator.uniform(-1, 1, SAMPLES).astype(dtype)
    curve = data.Data.of(x, np.sin(3 * x).astype(dtype))
    yield "curve", CurveReplica(3, dtype=dtype), data.Dataset("curve", curve, curve)
    yield "softmax", SoftmaxReplica(7, 5, seed=1, dtype=dtype), cast(dataset(5))
    yield "dense", DenseReplica((7, 11, 5), seed=1, dtype=dtype), cast(dataset(5))
    tanh = DenseReplica((7, 11, 1), "tanh", "mse", seed=1, dtype=dtype)
    yield "tanh", tanh, cast(dataset(None))


def train(strategy, replica, data, optimizer, **options):
    options = dict(batch_size=BATCH, seed=5, progress=False) | options
    trainer = Trainer(replica, data, strategy, optimizer, **options)
    history = trainer.fit(5)
    assert trainer.steps == 50
    return trainer, history


def numpy_replicas(algorithm, one_copy=False, rules=RULES):
    team = Team()
    for dtype in ("float32", "float64"):
        for rule in rules:
            of_one = replicas(dtype)
            of_all = replicas(dtype)
            for (name, one, data), (_, mine, _) in zip(of_one, of_all, strict=True):
                serial, alone = train(strategies.Serial(), one, data, rule)
                if team.rank > 0:
                    mine.parameters[:] = 7  # rank 0's weights are used
                parallel, together = train(
                    strategies.Synchronous(team, algorithm, one_copy), mine, data, rule
                )
                if rows := team.peers(parallel.replica.parameters):
                    copies = len({row.ctypes.data for row in rows})
                    assert copies == (1 if one_copy else team.size)
                error = np.abs(serial.replica.parameters - parallel.replica.parameters).max()
                limit = 1e-5 if dtype == "float32" else 1e-12
                assert error <= limit, f"{name} {dtype} {rule}: {error}"
                rows = np.array([list(row.values()) for row in together.epochs])
                assert np.ptp(team.allgather(rows).reshape(team.size, -1), axis=0).max() == 0
                for column in alone.last:
                    if column not in ("seconds", "samples_per_second"):
                        a, b = alone.column(column), together.column(column)
                        np.testing.assert_allclose(a, b, rtol=1e-4, err_msg=column)


@pytest.mark.thorough(but="3")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_numpy_replicas(on_ranks, ranks):
    on_ranks(ranks, numpy_replicas, "fused")


@pytest.mark.thorough(but="3")
@with_ranks(1, 2, 3, 4)
def test_options_of_a_trainer():
    """With each of them p ranks train like one process, and not as with another one."""
    team = Team()
    steep = {"learning_rate": schedules.warm_up(schedules.cosine(0.2, 50), 10, start=0.05)}
    cases = (
        ("momentum", {"accumulate": 3}),
        ("sgd", {"clip_norm": 0.4}),
        ("momentum", steep),
        ("momentum", {"correct_momentum": False, **steep}),
        ("momentum", {"shuffle": False}),
        ("lars", {"learning_rate": schedules.warm_up(10.0, 20), "clip_norm": 0.5}),
        ("lamb", {"accumulate": 2, "clip_norm": 0.5, **steep}),
        ("adam", {"accumulate": 4, "clip_norm": 0.5}),
    )
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-12)):
        found = []
        for rule, options in cases:
            ends = []
            for algorithm in (None, "fused", "ring"):
                alone = algorithm is None
                strategy = strategies.Serial() if alone else strategies.Synchronous(team, algorithm)
                _, replica, whole = [*replicas(dtype)][2]
                trainer, history = train(strategy, replica, whole, rule, **options)
                ends.append(trainer.replica.parameters.copy())
            losses = history.column("loss")
            assert losses[-1] < losses[0]
            for end in ends[1:]:
                np.testing.assert_allclose(end, ends[0], rtol=0, atol=tolerance, err_msg=rule)
            found.append(ends[0])
        for i, one in enumerate(found):
            assert all(np.abs(one - other).max() > 1e-3 for other in found[:i])


@pytest.mark.thorough(but=["shared_memory-1", "ring-0"])
@pytest.mark.parametrize(
    ("algorithm", "shared"), [("ring", "0"), ("shared_memory", "1"), ("fused", "0")]
)
def test_other_ways_to_reduce(on_ranks, algorithm, shared):
    env = {"NUMBA_KERNELS_WINDOW": shared}
    on_ranks(3, numpy_replicas, algorithm, False, FEW_RULES, env=env)


@pytest.mark.thorough(but="1")
@pytest.mark.parametrize("shared", ["1", "0"])
def test_one_copy_of_the_weights(on_ranks, shared):
    env = {"NUMBA_KERNELS_WINDOW": shared}
    on_ranks(3, numpy_replicas, "fused", True, FEW_RULES, env=env)


@with_ranks(3)
def test_stages_of_zero():
    """Stage 1 divides the optimizer's state, stage 0 does not, and both do the same updates."""
    from tutorial_dl import data

    team, digits, found = Team(), data.digits(), {}
    for stage in (0, 1):
        strategy = strategies.Synchronous(team, shard=stage)
        trainer = Trainer(models.softmax(digits), digits, strategy, "adam", progress=False)
        trainer.fit(1)
        found[stage] = trainer.replica.parameters.copy()
        n = trainer.replica.parameters.size
        first, last = team.slice_of(n) if stage else (0, n)
        assert trainer.strategy.state.slots.shape == (2, last - first)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-5 * np.abs(found[0]).max())
    for stage in (2, 3):
        words = f"shard {stage} needs a model that is computed layer by layer: train "
        with pytest.raises(ValueError, match=words):
            strategies.get("synchronous", team, shard=stage)
    with pytest.raises(ValueError, match="one_copy divides the optimizer's state, too"):
        strategies.Synchronous(team, one_copy=True, shard=0)


@with_ranks(1)
def test_one_copy_is_refused_where_every_rank_updates():
    with pytest.raises(ValueError, match="with algorithm 'ring', every rank updates its own"):
        strategies.Synchronous(algorithm="ring", one_copy=True)
    with pytest.raises(ValueError, match="one_copy needs strategy 'synchronous', got 'serial'"):
        strategies.get("serial", one_copy=True)


@with_ranks(4)
def test_more_ranks_than_samples():
    """Some ranks have no sample in some rounds; validation has fewer samples than ranks."""
    from tutorial_dl import data

    x = np.linspace(-1, 1, 7)
    part, kept = data.Data.of(x, x**2), data.Data.of(x[:2], x[:2] ** 2)
    few = data.Dataset("few", part, kept)
    results = []
    for strategy in (strategies.Serial(), strategies.Synchronous(Team())):
        trainer = Trainer(
            CurveReplica(3, dtype="float64"), few, strategy, "sgd", batch_size=2, progress=False
        )
        history = trainer.fit(3)
        results.append((trainer.replica.parameters, history.column("val_loss")))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-13)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-10)


def keras_networks(folder):
    """Train on 1, 2 and 3 of these ranks, one after the other, and by Keras itself on one."""
    everybody = Team()
    for ranks in range(1, everybody.size + 1):
        team = everybody.split(everybody.rank < ranks) if ranks < everybody.size else everybody
        if everybody.rank < ranks:
            assert team.size == ranks
            networks(team, f"{folder}/{ranks}.npz")
        everybody.barrier()
    if everybody.rank == 0:
        np.savez(f"{folder}/keras.npz", **dict(with_keras_itself()))
    everybody.barrier()


def networks(team, out):
    """Train a dense network, and one with two inputs and batch statistics, with SGD and Adam."""
    import keras

    from tutorial_dl import data

    saved = {}
    whole = dataset(5)
    part = data.Data.of(whole.train.inputs.astype("float32"), whole.train.targets)
    one_input = data.Dataset("one", part, part, 5)
    x = part.inputs
    part = data.Data.of((x[:, :3], x[:, 3:]), part.targets)
    two_inputs = data.Dataset("two", part, part, 5)

    def network():
        keras.utils.set_random_seed(8 + team.rank)  # rank 0's first weights are used
        return keras.Sequential(
            [keras.Input((7,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(5, "softmax")]
        )

    def functional():
        keras.utils.set_random_seed(9 + team.rank)
        a, b = keras.Input((3,)), keras.Input((4,))
        h = keras.layers.Concatenate()([keras.layers.Dense(6, "tanh")(a), b])
        return keras.Model([a, b], keras.layers.Dense(5, "softmax")(h))

    for name, build, whole in (("net", network, one_input), ("two", functional, two_inputs)):
        model = build()
        model.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        one = replica.of(model)  # with its graphs, which are made once
        first = one.parameters.copy()
        for rule in ("sgd", "adam"):
            one.parameters[:] = first
            rate = {"sgd": 0.1, "adam": 0.001}[rule]
            trainer = Trainer(
                one, whole, "synchronous", optimizers.get(rule, rate), batch_size=BATCH,
                seed=5, team=team, progress=False,
            )  # fmt: skip
            history = trainer.fit(5)
            saved[f"{name}-{rule}"] = np.concatenate(
                [v.numpy().ravel() for v in model.trainable_variables]
            )
            saved[f"{name}-{rule}-accuracy"] = history.column("val_accuracy")
    moving_statistics(team, one_input)
    if team.rank == 0:
        np.savez(out, **saved)


def moving_statistics(team, whole):
    """After an epoch, all ranks hold the mean of their statistics, weighted by samples."""
    import keras

    keras.utils.set_random_seed(8)
    layers = [keras.Input((7,)), keras.layers.BatchNormalization(momentum=0.0)]
    model = keras.Sequential([*layers, keras.layers.Dense(5, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    trainer = Trainer(model, whole, "synchronous", batch_size=SAMPLES, team=team, progress=False)
    trainer.fit(1)
    # With one batch and momentum 0, each rank's statistics are those of its share.
    own = next(iter(trainer.batches.epoch(0)))[0]
    shares = [own.mean(axis=0), own.var(axis=0)]
    weighted = np.append(np.concatenate(shares).astype("f8"), 1) * len(own)
    sums = team.allreduce(weighted)
    np.testing.assert_allclose(trainer.replica.state, sums[:-1] / sums[-1], atol=1e-5)


def with_keras_itself():
    """The same training by Keras's own optimizers and loop, in one process."""
    import keras

    from tutorial_dl import data

    whole = dataset(5)
    x = whole.train.inputs.astype("float32")
    batches = data.Batches(data.Data.of(x, whole.train.targets), BATCH, seed=5)
    keras.utils.set_random_seed(8)
    start = keras.Sequential(
        [keras.Input((7,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(5, "softmax")]
    )
    weights = start.get_weights()
    for name, rule in (("sgd", keras.optimizers.SGD(0.1)), ("adam", keras.optimizers.Adam(0.001))):
        start.set_weights(weights)
        start.compile(optimizer=rule, loss="sparse_categorical_crossentropy")
        for epoch in range(5):
            for batch in batches.epoch(epoch):
                start.train_on_batch(*batch)
        yield f"net-{name}", np.concatenate([v.ravel() for v in start.get_weights()])


@pytest.mark.thorough
@pytest.mark.xdist_group("keras")
def test_keras_networks(on_ranks, tmp_path):
    on_ranks(3, keras_networks, str(tmp_path), timeout=300, keras=True)
    saved = {ranks: dict(np.load(tmp_path / f"{ranks}.npz")) for ranks in (1, 2, 3)}
    for ranks in (2, 3):
        for name, alone in saved[1].items():
            error = np.abs(saved[ranks][name] - alone).max()
            assert error <= (1e-5 if "accuracy" not in name else 0.011), f"{name} on {ranks}"
    for name, theirs in np.load(tmp_path / "keras.npz").items():
        np.testing.assert_allclose(saved[1][name], theirs, atol=1e-5, err_msg=name)


@with_ranks(2)
def test_ranks_that_disagree():
    """One rank has other samples, layers, options, rules or weights: all ranks raise an error."""
    from tutorial_dl import data

    team, digits = Team(), data.digits()
    odd = team.rank
    for options, named in (
        ({"samples": 10 + odd}, "samples"),
        ({"degree": 2 + odd}, "parameters"),
        ({"seed": odd}, "seed"),
        ({"learning_rate": 0.1 * (1 + odd)}, "optimizer|learning rates"),
        ({"learning_rate": schedules.cosine(0.1, 100 + odd)}, "learning rates"),
        ({"optimizer": ("adam", "sgd")[odd]}, "optimizer"),
        ({"correct_momentum": bool(odd)}, "correct_momentum"),
        ({"algorithm": "auto"}, None),
    ):
        x = np.linspace(0, 1, options.pop("samples", 10), dtype="float32")
        part = data.Data.of(x, x)
        replica = CurveReplica(options.pop("degree", 2))
        # (The fused step would hide a drift: weights come from the rank that owns their slice.)
        strategy = strategies.Synchronous(team, options.pop("algorithm", "fused"))
        whole = data.Dataset("line", part, part)
        trainer = Trainer(replica, whole, strategy, batch_size=5, progress=False, **options)
        if named:
            words = rf"ranks differ in the .*({named}).*: .* on rank \d, .* on rank \d; all"
            with pytest.raises(ValueError, match=words):
                trainer.fit(1)
        else:
            trainer.fit(1)
            trainer.replica.parameters[0] += np.float32(1e-6) * odd
            with pytest.raises(DriftError, match="first in layer"):
                trainer.fit(1)
        team.recover()
    # If ranks begin with different weights, all take rank 0's before any evaluation.
    trainer = Trainer(models.dense(digits, seed=odd), digits, team=team, progress=False)
    found = trainer.predict(digits.validation.inputs[:9])
    right = models.dense(digits, seed=0).predict(digits.validation.inputs[:9])
    np.testing.assert_allclose(found, right, rtol=1e-5)


@with_ranks(2)
def test_drift_is_found():
    """If one rank changes a weight, an error names its layer within `check_every` steps."""
    from tutorial_dl import data

    team, digits = Team(), data.digits()

    def bend(trainer):
        segment = next(s for s in trainer.replica.segments if s.name == "layer_2/bias")
        # A smaller change could be lost in the rounding of the next update.
        segment.view(trainer.replica.parameters)[...] += trainer.team.rank

    trainer = Trainer(
        models.dense(digits), digits, strategies.Synchronous(team, "ring"), progress=False,
        check_every=10, callbacks=[at_step(12, bend)],
    )  # fmt: skip
    with pytest.raises(DriftError, match="first in layer 'layer_2/bias'"):
        trainer.fit(1)
    assert trainer.steps == 20


@with_ranks(3)
def test_nan_names_step_and_rank():
    from tutorial_dl import data

    team = Team()
    digits = data.digits()
    trainer = Trainer(models.softmax(digits), digits, strategies.Synchronous(team), progress=False)
    trainer.run.agree(trainer.loop)  # while the ranks still have the same samples
    if team.rank == 1:
        digits.train.inputs[700:] = np.nan  # which a Trainer refuses from the beginning
    expected = TrainingError if team.rank == 1 else (PeerError, TrainingError)
    with pytest.raises(expected, match=r"the loss is nan at step 1 \(epoch 1\) on rank 1"):
        trainer.fit(1)
    team.settle()
