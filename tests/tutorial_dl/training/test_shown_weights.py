"""Weights that are validated and saved, where others are trained; and batches that grow."""

import itertools

import numpy as np
import pytest
from rank_tests import with_ranks

from numba_kernels.errors import PeerError
from numba_kernels.optimizers import SGD, SOAP, Adam, Averaged, Muon, ScheduleFreeSGD
from tutorial_dl import Team, Trainer, data, strategies
from tutorial_dl.replica import DenseReplica
from tutorial_dl.training.callbacks import Callback, EarlyStopping, GrowBatch

SHOWING = {
    "schedule-free": ScheduleFreeSGD(0.5),
    "average": Averaged(Adam(0.01), 0.9),
    "average of owners": Averaged(Muon(0.01, adam=()), 0.9),
    "look ahead": Averaged(SGD(0.1, 0.9), 0.5, every=5, overwrite=5),
}


def trained(strategy, optimizer, epochs=(2,), replica=None, **options):
    """A Trainer after so many calls of `fit`."""
    dice = np.random.default_rng(3)
    x = dice.normal(size=(120, 7))
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    whole = data.Dataset("signs", data.Data.of(x, y), data.Data.of(x[:50], y[:50]), 2)
    replica = replica or DenseReplica((7, 11, 2), seed=1, dtype="float64")
    options = {"batch_size": 10, "progress": False} | options
    trainer = Trainer(replica, whole, strategy, optimizer, **options)
    for more in epochs:
        trainer.fit(more)
    return trainer


def by_hand(optimizer, epochs=2):
    """The weights trained and those shown at the end, from a plain loop over batches."""
    trainer = trained("serial", SGD(0.0), (1,))
    replica, batches = trainer.replica, trainer.batches
    replica.parameters[:] = DenseReplica((7, 11, 2), seed=1, dtype="float64").parameters
    state = optimizer.init(replica.parameters.size, np.float64, replica.segments)
    for epoch in range(epochs):
        for batch in batches.epoch(epoch):
            replica.compute_gradient(batch)
            optimizer.update(replica.parameters, replica.gradient, state)
    own = replica.parameters.copy()
    optimizer.show(replica.parameters, state, True)
    return own, replica.parameters


@pytest.mark.thorough(but="3")
@with_ranks(1, 3)
def test_shown_weights(folder):
    team = Team()
    for name, optimizer in SHOWING.items():
        own, shown = by_hand(optimizer)
        assert np.abs(own - shown).max() > 1e-4
        for algorithm, epochs in itertools.product(("fused", "ring"), ((2,), (1, 1))):
            trainer = trained(strategies.Synchronous(team, algorithm), optimizer, epochs)
            close = {"rtol": 0, "atol": 1e-10, "err_msg": f"{name} {algorithm} {epochs}"}
            np.testing.assert_allclose(trainer.replica.parameters, shown, **close)
            # What was validated is what is there now
            assert trainer.evaluate()["loss"] == pytest.approx(trainer.history.last["val_loss"])
        if team.size > 1:
            assert (
                np.ptp(team.allgather(trainer.replica.parameters).reshape(3, -1), axis=0).max() == 0
            )
        # A checkpoint has the weights that are trained, and ends as an uninterrupted run.
        run = f"{folder}/{name}"
        trained(strategies.Synchronous(team), optimizer, (1,), checkpoint=run)
        again = trained(strategies.Synchronous(team), optimizer, (), checkpoint=run)
        assert again.resume()
        again.fit_to(2)
        np.testing.assert_allclose(again.replica.parameters, shown, rtol=0, atol=1e-10)
        again = trained(strategies.Synchronous(team), optimizer, (), checkpoint=run)
        assert again.resume()
        again.fit_to(2)  # nothing is left, but the weights are those to show
        np.testing.assert_allclose(again.replica.parameters, shown, rtol=0, atol=1e-10)
    best = EarlyStopping(patience=9, restore_best=True)
    trainer = trained(strategies.Synchronous(team), SHOWING["average"], (6,), callbacks=[best])
    loss = min(trainer.history.column("val_loss"))
    assert trainer.evaluate()["loss"] == pytest.approx(loss)  # callbacks keep what was validated


@with_ranks(2, keras=True)
def test_a_failure_while_weights_are_shown():
    """One rank fails in a callback, and the other goes on into the next exchange."""
    import keras

    from tutorial_dl.model_parallel import ShardedReplica

    class Fails(Callback):
        def on_epoch_end(self, trainer, row):
            if fails and row["epoch"] == 1 and trainer.team.rank == 0:
                raise OSError("the disk is full")

    def model(shard):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(11, "tanh"), keras.layers.Dense(2)]
        made = keras.Sequential([keras.Input((7,)), *layers], name="signs")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile("adam", loss)
        return made if shard < 2 else ShardedReplica(made, team, shard)

    team, error = Team(), PeerError if Team().rank else OSError
    for shard, algorithm in ((1, "fused"), (1, "ring"), (2, "fused"), (3, "fused")):
        losses = []
        for fails in (False, True):
            strategy = strategies.Synchronous(team, algorithm)
            options = {"replica": model(shard), "callbacks": [Fails()]}
            trainer = trained(strategy, SHOWING["average"], (), **options)
            if fails:
                with pytest.raises(error):
                    trainer.fit(2)
                team.recover(60)
            trainer.fit(2 - fails)
            losses.append(trainer.history.column("val_loss"))
        np.testing.assert_allclose(*losses, rtol=1e-5, err_msg=f"{shard} {algorithm}")
        # A failure after training leaves the weights that are shown.
        with pytest.raises(error):
            if team.rank == 0:
                team.abort(full := OSError("the disk is full"))
                raise full
            trainer.evaluate()
        team.recover(60)
        assert trainer.evaluate()["loss"] == pytest.approx(trainer.history.last["val_loss"])


@with_ranks(2)
def test_what_does_not_fit():
    team, average = Team(), SHOWING["average"]
    for strategy in ("downpour", "elastic_averaging", "hogwild"):
        with pytest.raises(ValueError, match="since it validates the weights that it trains"):
            trained(strategies.get(strategy, team), average)
    team.recover(60)  # after errors while it attached, here and below
    small = {"noise_scale": True, "compression": "fp16"}
    for options, words in (({"noise_scale": True}, "on 1 rank"), (small, "with ")):
        alone = team.split(team.rank) if "compression" not in options else team
        with pytest.raises(ValueError, match=f"at least 2 ranks, each with samples .*{words}"):
            trained(strategies.Synchronous(alone, **options), Adam())
        team.recover(60)
    with pytest.raises(ValueError, match=r"GrowBatch needs strategies\.Synchronous"):
        trained(strategies.Synchronous(team), Adam(), callbacks=[GrowBatch()])


@with_ranks(2)
def test_a_batch_grows(folder):
    """It doubles where the critical size is twice as large; a resumed run goes on with it."""
    team = Team()

    def run(epochs=(6,), **options):
        strategy = strategies.Synchronous(team, noise_scale=True)
        callbacks = [GrowBatch()]
        return trained(strategy, SGD(0.05), epochs, batch_size=4, callbacks=callbacks, **options)

    rows = run().history.epochs
    sizes = [row["batch_size"] for row in rows]
    for row, size, after in zip(rows, sizes, sizes[1:], strict=False):
        assert after == (2 * size if 120 > 2 * size <= row["critical_batch_size"] else size)
    assert sizes[0] == 4 < sizes[-1] and len({*sizes}) > 1
    run((3,), checkpoint=f"{folder}/run")
    again = run((), checkpoint=f"{folder}/run")
    assert again.resume()
    again.fit_to(6)
    assert [row["batch_size"] for row in again.history.epochs] == sizes
    assert again.steps == sum(-(-120 // size) for size in sizes)
    plain = trained(strategies.Synchronous(team), SGD(0.05), (1,), batch_size=4)
    assert plain.history.last["loss"] == pytest.approx(rows[0]["loss"])  # measuring changes nothing


@with_ranks(1)
def test_soap_of_one_rank():
    """It trains; of several ranks see numba_kernels/step/test_step.py."""
    trainer = trained("serial", SOAP(0.01, adam=()), (4,))
    losses = trainer.history.column("loss")
    assert losses[-1] < 0.8 * losses[0]
