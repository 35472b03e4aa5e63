"""p ranks have the same parameters as one process after 50 steps, for any shares."""

import threading

import numpy as np
import pytest

SAMPLES, BATCH = 197, 20  # no rank count divides either; the last batch has 17 samples
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
    from tutorial_dl.replica import CurveReplica, DenseReplica, SoftmaxReplica

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


def train(strategy, replica, data, optimizer):
    from tutorial_dl import Trainer

    trainer = Trainer(replica, data, strategy, optimizer, batch_size=BATCH, seed=5, progress=False)
    history = trainer.fit(5)
    assert trainer.steps == 50
    return trainer, history


def numpy_replicas(algorithm, one_copy=False, rules=RULES):
    from tutorial_dl import Team, strategies

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


def test_stages_of_zero(on_ranks):
    on_ranks(3, shards)


def shards():
    """Stage 1 divides the optimizer's state, stage 0 does not, and both do the same updates."""
    from tutorial_dl import Team, Trainer, data, models, strategies

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


def one_copy_is_refused():
    from tutorial_dl import strategies

    with pytest.raises(ValueError, match="with algorithm 'ring', every rank updates its own"):
        strategies.Synchronous(algorithm="ring", one_copy=True)
    with pytest.raises(ValueError, match="one_copy needs strategy 'synchronous', got 'serial'"):
        strategies.get("serial", one_copy=True)


def test_one_copy_is_refused_where_every_rank_updates(on_ranks):
    on_ranks(1, one_copy_is_refused)


def more_ranks_than_samples():
    """Some ranks have no sample in some rounds; validation has fewer samples than ranks."""
    from tutorial_dl import Team, Trainer, data, strategies
    from tutorial_dl.replica import CurveReplica

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


def test_more_ranks_than_samples(on_ranks):
    on_ranks(4, more_ranks_than_samples)


def keras_networks(folder):
    """Train on 1, 2 and 3 of these ranks, one after the other, and by Keras itself on one."""
    from tutorial_dl import Team

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

    from tutorial_dl import Trainer, data, optimizers, replica

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

    from tutorial_dl import Trainer

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


def ranks_that_disagree(what):
    from tutorial_dl import Team, Trainer, data, strategies
    from tutorial_dl.replica import CurveReplica
    from tutorial_dl.replica.consistency import DriftError

    team = Team()
    n = 10 + (what == "samples" and team.rank == 1)
    x = np.linspace(0, 1, n, dtype="float32")
    part = data.Data.of(x, x)
    trainer = Trainer(
        CurveReplica(2 + (what == "parameters" and team.rank == 1)),
        data.Dataset("line", part, part),
        # (The fused step would hide a drift: weights come from the rank that owns their slice.)
        strategies.Synchronous(team, "auto" if what == "drift" else "fused"),
        seed=int(what == "seed" and team.rank == 1),
        batch_size=5,
        progress=False,
    )
    if what == "drift":
        trainer.fit(1)
        trainer.replica.parameters[0] += np.float32(1e-6) * team.rank
        with pytest.raises(DriftError, match="first in layer"):
            trainer.fit(1)
    else:
        with pytest.raises(ValueError, match=rf"rank \d has \d+ .*{what}, rank \d has \d+; all"):
            trainer.fit(1)


@pytest.mark.parametrize("what", ["samples", "parameters", "seed", "drift"])
def test_ranks_that_disagree(on_ranks, what):
    on_ranks(2, ranks_that_disagree, what)


def one_rank_fails():
    from numba_kernels import PeerError
    from tutorial_dl import Team, Trainer, data, models, strategies
    from tutorial_dl.training import TrainingError

    team = Team()
    digits = data.digits()
    trainer = Trainer(models.softmax(digits), digits, strategies.Synchronous(team), progress=False)
    if team.rank == 1:
        digits.train.inputs[700:] = np.nan  # which a Trainer refuses from the beginning
    expected = TrainingError if team.rank == 1 else (PeerError, TrainingError)
    with pytest.raises(expected, match=r"the loss is nan at step 1 \(epoch 1\) on rank 1"):
        trainer.fit(1)
    team.settle()


def test_nan_names_step_and_rank(on_ranks):
    on_ranks(3, one_rank_fails)


def overlapped_is_the_mean():
    """Reducing layer by layer on a thread gives the same gradient, and errors are raised."""
    from mpi4py import MPI

    from numba_kernels.errors import PeerError
    from tutorial_dl import Team
    from tutorial_dl.course.overlap import Overlapped, seconds
    from tutorial_dl.replica import DenseReplica

    team, threads = Team(), threading.active_count()
    random = np.random.default_rng(team.rank)
    batch = random.normal(size=(6, 7)).astype("float32"), random.integers(0, 5, 6)
    plain, other = (DenseReplica((7, 40, 30, 5), seed=2) for _ in range(2))
    with Overlapped(team, other) as overlapped:
        for _ in range(20):
            loss = overlapped.gradient(batch)
            assert loss == plain.compute_gradient(batch)[0]
            expected = team.allgather(plain.gradient).mean(axis=0, dtype=np.float64)
            np.testing.assert_allclose(other.gradient, expected, atol=1e-7)
        with pytest.raises(ValueError, match="equal shares"):
            overlapped.gradient((batch[0][:0], batch[1][:0]))
    replicas = {n: DenseReplica((7, 40, 5)) for n in ("alone", "in turn", "overlapped")}
    took = seconds(team, replicas, batch, rounds=5)
    assert all(t > 0 for t in took.values())
    assert not threading.active_count() - threads

    if team.size > 1:  # rank 0 never calls it
        with Overlapped(team, other) as overlapped:
            MPI.COMM_WORLD.Barrier()  # no rank is still in a call
            if team.rank == 0:
                overlapped._team.abort(KeyError("of rank 0"))
            else:
                with pytest.raises(PeerError, match="rank 0 failed"):
                    overlapped.gradient(batch)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_overlap(on_ranks, ranks):
    on_ranks(ranks, overlapped_is_the_mean)
