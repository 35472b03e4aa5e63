"""Options of a Trainer: accumulation, when training stops, compression."""

import numpy as np
import pytest
from rank_tests import with_ranks

from numba_kernels.shared.window import aligned
from tutorial_dl import Team, Trainer, data, models, strategies
from tutorial_dl.replica import SoftmaxReplica
from tutorial_dl.replica.consistency import check_same_weights
from tutorial_dl.replica.proxy import Accumulating
from tutorial_dl.training.callbacks import Callback, EarlyStopping, Target, Throughput


def small_pieces():
    """Accumulation changes no update, and no micro-batch is too large."""
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


@with_ranks(1)
def test_best_statistics():
    """`restore_best` restores the moving statistics together with their weights."""
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


@with_ranks(1, 2)
def test_when_training_stops():
    """When training stops, and with which weights, on all ranks alike."""
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

    trainer(Throughput(20, write=lines.append), lambda t, row: called.append(row["epoch"])).fit(2)
    assert called == [1, 2]
    assert len(lines) == (90 // 20 if team.rank == 0 else 0)
    with pytest.raises(ValueError, match="unknown metric 'accuracy'; choose one of loss, val_"):
        trainer(Target("accuracy", 1)).fit(1)


@pytest.mark.thorough(but="2")
@with_ranks(2, 3)
def test_compression():
    """Every method trains, with equal weights on all ranks; halves train almost like no method."""
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
