"""A Trainer whose ranks divide gradients and weights: as one process, in less memory."""

import doctest
import sys

import numpy as np
import pytest

from numba_kernels import optimizers
from numba_kernels.errors import PeerError
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, replica, strategies
from tutorial_dl.data import Batches, Data, Dataset
from tutorial_dl.model_parallel import ShardedReplica, sharded
from tutorial_dl.replica.layered import cnn_layers, mlp_layers
from tutorial_dl.replica.layers import Dense
from tutorial_dl.runtime.callback import agree_on_callbacks
from tutorial_dl.training.callbacks import EarlyStopping

RANDOM = np.random.default_rng(5)
TOKENS = RANDOM.integers(0, 9, (50, 7))
NEAR = {"float32": 1e-5, "float64": 1e-12}
BATCH, EPOCHS = 7, 3  # 6 batches an epoch: of 40 samples, the last one has 5


def build(model, dtype="float64", dropout=0.0):
    if model == "transformer":
        return replica.TransformerReplica(9, 6, 12, 3, 2, seed=2, dtype=dtype, dropout=dropout)
    layers = mlp_layers([12, 33, 20, 5]) if model == "mlp" else cnn_layers((4, 4, 2), [3, 5], 5)
    return replica.LayeredReplica(layers, seed=2, dtype=dtype)


def dataset(model):
    if model == "transformer":
        x, y = TOKENS[:, :-1], TOKENS[:, 1:]
    else:
        random = np.random.default_rng(3)
        x = random.normal(size=(50, *((12,) if model == "mlp" else (4, 4, 2))))
        y = random.integers(0, 5, 50)
    return Dataset(model, Data.of(x[:40], y[:40]), Data.of(x[40:], y[40:]), 9)


def rates(step):
    return 0.01 * (1 + step % 3)


def trainer(model, stage, dtype="float64", dropout=0.0, optimizer="adam", **options):
    team, one = Team(), build(model, dtype, dropout)
    if stage < 2:
        strategy = strategies.Synchronous(team, shard=stage)
    else:
        one, strategy = ShardedReplica(one, team, stage), "synchronous"
    # Shares of 10 samples in batches of 3: ranks measure different numbers of batches
    how = {"batch_size": BATCH, "progress": False, "validation_batch_size": 3}
    how["learning_rate"] = rates
    return Trainer(one, dataset(model), strategy, optimizer, **how | options)


def serial(model, optimizer, dtype, clip_norm):
    """Losses, weights and state of one process with the whole batches: two plain steps each."""
    one, train = build(model, dtype), dataset(model).train
    rule = optimizers.get(optimizer, rates(0))
    state, losses = rule.init(one.parameters.size, dtype, one.segments), []
    for epoch in range(EPOCHS):
        sums = 0
        for batch in Batches(train, BATCH, seed=0).epoch(epoch):
            rule = rule.at_rate(rates(state.step), state)
            loss, samples = one.compute_gradient(batch)
            if clip_norm is not None:
                optimizers.clip_by_norm(one.gradient, clip_norm)
            rule.update(one.parameters, one.gradient, state)
            sums += loss * samples
        losses.append(sums / 40)
    return losses, one, state.slots


def as_serial(cases, folder):
    for model, optimizer, dtype, clip_norm, accumulate in cases:
        losses, one, slots = serial(model, optimizer, dtype, clip_norm)
        for stage in (2, 3):
            how = dict(optimizer=optimizer, clip_norm=clip_norm, accumulate=accumulate)
            found = trainer(model, stage, dtype, **how)
            found.fit(EPOCHS)
            shards, near = found.replica.shards, NEAR[dtype]
            # The averages are sums of gradients, in which digits cancel; weights are larger.
            for ours, theirs, times in (
                (shards.weights(), one.parameters, 1), (shards.slots(), slots, 10),
            ):  # fmt: skip
                away = np.abs(ours - theirs).max() / np.abs(theirs).max()
                assert away < times * near, (model, dtype, stage, away)
            for row, loss in zip(found.history.epochs, losses, strict=True):
                assert row["loss"] == pytest.approx(loss, rel=10 * near)
            kept = dataset(model).validation
            expected = one.evaluate([(kept.inputs, kept.targets)])
            for name in ("loss", "accuracy"):
                assert row[f"val_{name}"] == pytest.approx(expected[name], rel=10 * near)
            outputs = found.predict(kept.inputs)
            np.testing.assert_allclose(outputs, one.predict(kept.inputs), atol=10 * near)
            few = found.predict(kept.inputs[:1])  # ranks without a sample
            np.testing.assert_allclose(few, outputs[:1], atol=near)
            most = shards.most_in_use
            found.save(f"{folder}/{model}.npz")
            assert shards.most_in_use == most  # it is of steps
            with np.load(f"{folder}/{model}.npz") as arrays:
                for segment in one.segments:
                    theirs = segment.of(one.parameters)
                    away = np.abs(arrays[segment.name] - theirs).max(initial=0)
                    assert away < near * np.abs(one.parameters).max()
            assert shards._in_use == 0
            # A stream whose last batch has fewer samples than there are ranks
            sizes = np.split(np.arange(10), [4, 8, 9])
            batches = [(kept.inputs[i], kept.targets[i]) for i in sizes]
            measured = found.evaluate(data.stream(lambda: iter(batches)))  # noqa: B023
            for name in ("loss", "accuracy"):
                assert measured[name] == pytest.approx(expected[name], rel=10 * near)


# Model, optimizer, dtype, norm to clip by, and micro-batches per share of a batch
CASES = {
    2: [["mlp", "rmsprop", "float64", 0.1, 1], ["cnn", "adam", "float32", None, 1],
        ["mlp", "adagrad", "float64", None, 3]],
    3: [["mlp", "lamb", "float64", 0.5, 1], ["cnn", "adam", "float64", 0.1, 3],
        ["transformer", "momentum", "float64", None, 1]],
}  # fmt: skip


@pytest.mark.thorough(but="3")
@pytest.mark.parametrize("ranks", CASES)
def test_equal_to_one_process(on_ranks, ranks, tmp_path):
    on_ranks(ranks, as_serial, CASES[ranks], str(tmp_path))


def same(found, expected):
    for mine, theirs in zip(found.history.epochs, expected.history.epochs, strict=True):
        for name in ("loss", "val_loss", "val_accuracy"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-11), name
    vectors = [
        one.replica.shards.weights() if hasattr(one.replica, "shards") else one.replica.parameters
        for one in (found, expected)
    ]
    np.testing.assert_allclose(*vectors, rtol=0, atol=1e-13)


def goes_on(folder):
    """Each rank draws masks of its own, as with stage 1; every epoch is of another stage."""
    how = {"dropout": 0.2, "optimizer": "momentum"}
    expected = trainer("transformer", 1, **how)
    expected.fit(4)
    for number, stage in enumerate((3, 1, 2, 3), start=1):
        found = trainer("transformer", stage, checkpoint=f"{folder}/run", **how)
        assert found.resume() == (number > 1)
        found.fit_to(number)
    same(found, expected)


def test_checkpoints_go_on_under_another_stage(on_ranks, tmp_path):
    on_ranks(2, goes_on, str(tmp_path))


class Breaks(Dense):
    """Raises once in a backward pass, where it is armed."""

    armed = False

    def backward_inputs(self, w, saved, gy):
        if self.armed:
            self.armed = False
            raise ArithmeticError("no more")
        return super().backward_inputs(w, saved, gy)


def fails():
    team = Team()
    middle = Breaks("middle", 12, 12)
    layers = [Dense("first", 12, 12), middle, Dense("last", 12, 5)]
    expected = None
    for stage in (2, 3):
        one = ShardedReplica(replica.LayeredReplica(layers, seed=2), team, stage)
        # The best epoch is the first one
        best = EarlyStopping("epoch", patience=9, mode="min", restore_best=True)
        found = Trainer(one, dataset("mlp"), "synchronous", progress=False, callbacks=[best])
        found.fit(1)
        first = one.shards.weights()
        middle.armed = team.rank == 1
        with pytest.raises(ArithmeticError if team.rank == 1 else PeerError, match="no more"):
            found.fit(1)
        team.recover()
        found.fit(1)
        expected = found.history.epochs if expected is None else expected
        for mine, theirs in zip(found.history.epochs, expected, strict=True):
            assert mine["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-5)
        assert len(found.history.epochs) == 2
        np.testing.assert_array_equal(one.shards.weights(), first)
        # Parts of two epochs make no model
        best.best_epoch += team.rank
        agree_on_callbacks(team, [best], whole=False)
        assert best.weights is None and best.best_epoch == 2
    # A loss that is not finite is reported by the rank that has it, before it reaches the others.
    bad = data.Data.of(np.array([[np.inf] * 12, [0.0] * 12]), np.zeros(2, int))
    with pytest.raises(FloatingPointError if team.rank == 0 else PeerError, match="loss is nan"):
        try:
            with np.errstate(invalid="ignore"):
                found.strategy.step(bad.take(slice(team.rank, team.rank + 1)))
        except FloatingPointError as error:
            team.abort(error)
            raise
    team.recover()


def test_failures(on_ranks):
    on_ranks(2, fails)


def memory_falls():
    """The growth of all ranks' own memory, within 15% of what they hold and use."""
    import memory

    team, width = Team(), 1000

    def train(width, stage):
        layers = [Dense(f"layer_{i}", width, width) for i in range(8)]
        one = ShardedReplica(replica.LayeredReplica(layers, "mse"), team, stage)
        x = np.ones((16, width), np.float32)
        part = Data.of(x, x)
        whole = Dataset("ones", part, part)
        found = Trainer(one, whole, "synchronous", "adam", batch_size=8, progress=False)
        found.fit(1)
        return one

    for stage in (2, 3):
        train(40, stage)
        with memory.Peak(team) as making:
            one = train(width, stage)
        n, p = one.holding.size, team.size
        with memory.Peak(team) as peak:
            one.compute_gradient((np.ones((4, width), np.float32),) * 2)
        shards = one.shards
        # While it is made, every rank has all weights; then, what it holds
        held = sum(shards.held().values()) * p
        numbers = {2: p * n + n + 2 * n, 3: 4 * n}[stage]
        assert held == pytest.approx(4 * numbers, rel=0.001)
        most = max(held + p * shards.most_in_use, 4 * p * n * 1.2)
        assert making.bytes < 1.15 * most, (stage, making.bytes, most)
        assert peak.bytes < 1.15 * p * shards.most_in_use, (stage, peak.bytes)
        del one, shards


@pytest.mark.thorough
def test_memory(on_ranks):
    on_ranks(2, memory_falls, timeout=300, fresh=True)


def test_refused():
    team = Team()
    dense = replica.DenseReplica((4, 3))
    with pytest.raises(ValueError, match=r"DenseReplica can't be divided .* use shard 1"):
        ShardedReplica(dense, team)
    with pytest.raises(ValueError, match="stage must be 2 or 3, got 1"):
        ShardedReplica(build("mlp"), team, 1)
    one, known = ShardedReplica(build("mlp"), team), dataset("mlp")
    with pytest.raises(ValueError, match=r"train model_parallel.ShardedReplica\(model, team, 3\)"):
        strategies.Synchronous(team, shard=3)
    with pytest.raises(ValueError, match="must be at least 2 to accumulate, got 0"):
        Trainer(one, known, "synchronous", accumulate=0, progress=False)
    with pytest.raises(ValueError, match="synchronous, shard 3: leave out algorithm, one_copy"):
        Trainer(one, known, strategies.Synchronous(team, compression="fp16"), progress=False)
    with pytest.raises(ValueError, match="loss scale 8: shard 2 and 3 compute in the precision of"):
        Trainer(one, known, "synchronous", loss_scale=8, progress=False)
    batches = ((known.train.inputs[:4], known.train.targets[:4]) for _ in range(3))
    with pytest.raises(ValueError, match=r"needs samples by number, and data .* are a stream"):
        Trainer(one, data.stream(batches, steps=3), "synchronous")


def test_the_examples():
    found = doctest.testmod(sys.modules[sharded.__name__])
    assert found.attempted and not found.failed
