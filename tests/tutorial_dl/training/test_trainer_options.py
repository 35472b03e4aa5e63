"""Options of a Trainer: with all of them p ranks train like one process; when training stops."""

import numpy as np
import pytest

BATCH = 20
SAMPLES = 182  # the last batch has 2 samples, too few for 3 ranks
EPOCHS = 3


def dataset(dtype):
    from tutorial_dl import data

    generator = np.random.default_rng(3)
    x = generator.normal(size=(SAMPLES, 7)).astype(dtype)
    part = data.Data.of(x, generator.integers(0, 5, SAMPLES))
    return data.Dataset("random", part, part, 5)


def same_as_serial():
    from tutorial_dl import Team, Trainer, strategies
    from tutorial_dl.replica import DenseReplica
    from tutorial_dl.training import schedules

    team = Team()
    rate = schedules.warm_up(schedules.cosine(0.2, 30), 10, start=0.05)
    steep = {"learning_rate": rate}
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
            for strategy in (
                strategies.Serial(),
                strategies.Synchronous(team),
                strategies.Synchronous(team, "ring"),
            ):
                replica = DenseReplica((7, 11, 5), seed=1, dtype=dtype)
                trainer = Trainer(
                    replica, dataset(dtype), strategy, rule, BATCH, progress=False, **options
                )
                history = trainer.fit(EPOCHS)
                assert trainer.steps == 10 * EPOCHS
                ends.append(trainer.replica.parameters.copy())
            losses = history.column("loss")
            assert losses[-1] < losses[0]
            for end in ends[1:]:
                np.testing.assert_allclose(end, ends[0], rtol=0, atol=tolerance, err_msg=rule)
            found.append(ends[0])
        for i, one in enumerate(found):  # the options do something
            for other in found[:i]:
                assert np.abs(one - other).max() > 1e-3


@pytest.mark.thorough(but="3")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_p_ranks_are_one(on_ranks, ranks):
    on_ranks(ranks, same_as_serial)


def small_pieces():
    """Accumulation changes no update, and no micro-batch is too large."""
    from tutorial_dl import Trainer, data, models

    digits = data.digits()
    seen = []

    class Watched(models.softmax(digits).__class__):
        def compute_gradient(self, batch):
            seen.append(len(batch[0]))
            return super().compute_gradient(batch)

    ends = []
    for accumulate in (1, 4):
        seen.clear()
        replica = Watched(64, 10)
        trainer = Trainer(
            replica, digits, "serial", "adam", 50, progress=False, accumulate=accumulate
        )
        ends.append((trainer.fit(2).last["loss"], replica.parameters.copy()))
    assert max(seen) == 13 and len(seen) == 4 * trainer.steps
    assert sum(seen) == 2 * len(digits.train)
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-6)
    np.testing.assert_allclose(ends[0][1], ends[1][1], atol=1e-6)


def moved():
    """A replica that has computed and is then placed elsewhere keeps no old memory."""
    from numba_kernels.shared.window import aligned
    from tutorial_dl import data
    from tutorial_dl.replica import SoftmaxReplica
    from tutorial_dl.replica.proxy import Accumulating

    batch = data.digits().train.take(slice(0, 50))
    plain, inner = SoftmaxReplica(64, 10), SoftmaxReplica(64, 10)
    pieces = Accumulating(inner, 4)
    pieces.compute_gradient(batch)
    memory = [aligned(inner.gradient.size) for _ in range(2)]
    pieces.place(*memory)
    memory[1][:] = np.nan
    pieces.compute_gradient(batch)
    plain.compute_gradient(batch)
    assert pieces.gradient is inner.gradient is memory[1]
    np.testing.assert_allclose(memory[1], plain.gradient, atol=1e-6)
    pieces.random = np.arange(2)  # the inner replica's attribute
    assert inner.random is pieces.random


def test_accumulation_is_in_small_pieces(on_ranks):
    on_ranks(1, small_pieces)
    on_ranks(1, moved)


def best_statistics():
    """`restore_best` restores the moving statistics together with their weights."""
    from tutorial_dl import Team, Trainer, data, models
    from tutorial_dl.training.callbacks import EarlyStopping

    digits = data.digits()

    class WithState(models.softmax(digits).__class__):
        def compute_gradient(self, batch):
            self.state = self.state + 1
            return super().compute_gradient(batch)

    replica = WithState(64, 10)
    replica.state = np.zeros(1, np.float32)
    trainer = Trainer(
        replica, digits, "serial", batch_size=500, progress=False,
        learning_rate=lambda step: 0.01 if step < 6 else 100.0,
        callbacks=[EarlyStopping(patience=2, restore_best=True)],
    )  # fmt: skip
    assert len(trainer.fit(9).epochs) == 4  # of 3 rounds each; the second one was the best
    assert replica.state == [6]
    stop = trainer.callbacks[0]
    again = EarlyStopping(patience=2, restore_best=True)
    again.restore(*stop.save())
    np.testing.assert_array_equal(again.state, stop.state)
    np.testing.assert_array_equal(again.weights, stop.weights)
    assert Team().size == 1


def test_best_statistics(on_ranks):
    on_ranks(1, best_statistics)


def disagreements():
    """Ranks with different rules raise an error, even if their weights would be equal."""
    from tutorial_dl import Team, Trainer, data, models
    from tutorial_dl.training import schedules

    team, digits = Team(), data.digits()
    for options in (
        {"learning_rate": 0.1 * (1 + team.rank)},
        {"learning_rate": schedules.cosine(0.1, 100 + team.rank)},
        {"optimizer": ("adam", "sgd")[team.rank]},
        {"correct_momentum": bool(team.rank)},
    ):
        trainer = Trainer(models.softmax(digits), digits, team=team, progress=False, **options)
        with pytest.raises(ValueError, match="checksum of optimizer, learning rates"):
            trainer.fit(1)
        team.recover()
    # If ranks begin with different weights, all take rank 0's before any evaluation.
    trainer = Trainer(models.dense(digits, seed=team.rank), digits, team=team, progress=False)
    found = trainer.predict(digits.validation.inputs[:9])
    right = models.dense(digits, seed=0).predict(digits.validation.inputs[:9])
    np.testing.assert_allclose(found, right, rtol=1e-5)


def test_ranks_that_disagree(on_ranks):
    on_ranks(2, disagreements)


def stopping():
    """When training stops, and with which weights, on all ranks alike."""
    from tutorial_dl import Team, Trainer, data, models
    from tutorial_dl.training.callbacks import Callback, EarlyStopping, Target

    team, digits = Team(), data.digits()

    def trainer(*callbacks, **options):
        return Trainer(
            models.softmax(digits),
            digits,
            team=team,
            progress=False,
            callbacks=callbacks,
            **options,
        )

    reached = trainer(Target("val_accuracy", 0.8))
    accuracies = reached.fit(20).column("val_accuracy")
    assert accuracies[-1] >= 0.8 > max(accuracies[:-1]) and "has reached 0.8" in reached.stopped
    fallen = trainer(Target("val_loss", 1.2)).fit(20).column("val_loss")
    assert fallen[-1] <= 1.2 < min(fallen[:-1])

    # The rate is far too high after epoch 2, so the best weights are those at its end.
    best = trainer()
    best.fit(2)
    steps = best.steps

    def jumps(step):
        return 0.001 if step < steps else 30.0

    for restore, same in ((True, True), (False, False)):
        stopped = trainer(EarlyStopping(patience=2, restore_best=restore), learning_rate=jumps)
        assert len(stopped.fit(20).epochs) == 4 and "not improved since epoch 2" in stopped.stopped
        assert np.array_equal(stopped.replica.parameters, best.replica.parameters) == same

    # If one rank wants to stop, all stop; training can continue afterwards.
    class Wish(Callback):
        def on_epoch_end(self, trainer, row):
            if row["epoch"] == 3 and trainer.team.rank == trainer.team.size - 1:
                trainer.stop("rank's own reason")

    wished = trainer(Wish())
    assert len(wished.fit(10).epochs) == 3 and len(wished.fit(2).epochs) == 5

    called, lines = [], []
    from tutorial_dl.training.callbacks import Throughput

    trainer(Throughput(20, write=lines.append), lambda t, row: called.append(row["epoch"])).fit(2)
    assert called == [1, 2]
    assert len(lines) == (90 // 20 if team.rank == 0 else 0)
    for wrong, error, message in (
        ({"callbacks": ["stop"]}, TypeError, "callback must be .*, got 'stop'"),
        ({"accumulate": 0}, ValueError, "must be at least 2 to accumulate, got 0"),
        ({"clip_norm": 0.0}, ValueError, "clip_norm must .*, got 0"),
        ({"learning_rate": "fast"}, TypeError, "a number or a function of the step"),
        ({"check_every": 0}, ValueError, "check_every must be at least 1 step, got 0"),
    ):
        with pytest.raises(error, match=message):
            Trainer(models.softmax(digits), digits, team=team, **wrong)
    with pytest.raises(ValueError, match="unknown metric 'accuracy'; choose one of loss, val_"):
        trainer(Target("accuracy", 1)).fit(1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_when_training_stops(on_ranks, ranks):
    on_ranks(ranks, stopping)


def drifts():
    """If one rank changes a weight, an error names its layer within `check_every` steps."""
    from tutorial_dl import Team, Trainer, data, models
    from tutorial_dl.replica.consistency import DriftError
    from tutorial_dl.training.callbacks import Callback

    team, digits = Team(), data.digits()

    class Bend(Callback):
        def on_step_end(self, trainer, loss, samples):
            if trainer.steps == 12 and trainer.team.rank == 1:
                segment = next(s for s in trainer.replica.segments if s.name == "layer_2/bias")
                # A smaller change could be lost in the rounding of the next update.
                segment.of(trainer.replica.parameters)[...] += 1.0

    trainer = Trainer(
        models.dense(digits), digits, team=team, progress=False, check_every=10, callbacks=[Bend()]
    )
    # The fused step copies weights from the rank that owns them; rank 1 does not own this slice.
    with pytest.raises(DriftError, match="first in layer 'layer_2/bias'"):
        trainer.strategy.algorithm, trainer.strategy.two_steps = "ring", True
        trainer.fit(1)
    assert trainer.steps == 20


def test_drift_is_found(on_ranks):
    on_ranks(2, drifts)


def predicts(samples):
    from tutorial_dl import Team, Trainer, data, models

    team, digits = Team(), data.digits()
    trainer = Trainer(models.dense(digits), digits, team=team, progress=False)
    inputs = digits.validation.inputs[:samples]
    trainer.validation_batch_size = 7
    shared, alone = trainer.predict(inputs), trainer.replica.predict(inputs)
    np.testing.assert_allclose(shared, alone, rtol=1e-5)


@pytest.mark.parametrize(("ranks", "samples"), [(1, 20), (3, 50), (3, 2)])
def test_predict(on_ranks, ranks, samples):
    on_ranks(ranks, predicts, samples)


def compressed():
    """Every method trains, with equal weights on all ranks; halves train almost like no method."""
    from tutorial_dl import Team, Trainer, data, models, strategies
    from tutorial_dl.replica.consistency import check_same_weights

    team, digits = Team(), data.digits()
    ends = {}
    for method in (None, "fp16", "bf16", "top_k", "powersgd", "adasum"):
        strategy = strategies.Synchronous(team, compression=method)
        # (Adam divides small gradients by their size, and so would amplify rounding errors.)
        trainer = Trainer(
            models.softmax(digits), digits, strategy, "momentum", learning_rate=0.05, progress=False
        )
        accuracy = trainer.fit(3).last["val_accuracy"]
        check_same_weights(team, trainer.replica)
        assert accuracy > 0.8, (method, accuracy)
        ends[method] = trainer.replica.parameters.copy()
    exact = ends.pop(None)
    scale = np.abs(exact).max()
    for method, end in ends.items():
        away = np.abs(end - exact).max() / scale
        assert away > 0, method
        if method in ("fp16", "bf16"):  # rounded to 11 and 8 bits, some 140 times
            assert away < {"fp16": 1e-3, "bf16": 1e-2}[method], (method, away)
    with pytest.raises(ValueError, match=r"one_copy needs .* without compression; with TopK"):
        strategies.Synchronous(team, one_copy=True, compression="top_k")
    with pytest.raises(ValueError, match="unknown compression 'zip'"):
        strategies.Synchronous(team, compression="zip")


@pytest.mark.thorough(but="2")
@pytest.mark.parametrize("ranks", [2, 3])
def test_compression(on_ranks, ranks):
    on_ranks(ranks, compressed)
