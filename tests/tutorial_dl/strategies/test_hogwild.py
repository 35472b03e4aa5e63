"""Hogwild: properties that hold in any order of updates, checkpoints, and a rank that fails."""

from dataclasses import replace

import numpy as np
import pytest
from counted_runs import Cut, cut_at
from rank_tests import with_ranks

from numba_kernels import PeerError
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data
from tutorial_dl.checkpoint.format import CheckpointError
from tutorial_dl.replica import SoftmaxReplica
from tutorial_dl.strategies import Hogwild
from tutorial_dl.strategies.loss_scale import LossScale
from tutorial_dl.training import schedules


def a_trainer(team, samples=190, batch_size=10, optimizer="sgd", **options):
    """A trainer whose model counts in `counts` how often this rank used each sample."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(samples, 7))
    x[:, 0] = np.arange(samples) / samples
    part = data.Data.of(x, generator.integers(0, 5, samples))
    model = SoftmaxReplica(7, 5, dtype="float64", seed=2)
    counts, compute = np.zeros(samples), model.compute_gradient

    def counting(batch, *rest, **more):
        np.add.at(counts, np.rint(batch[0][:, 0] * samples).astype(int), 1)
        return compute(batch, *rest, **more)

    model.compute_gradient, model.counts = counting, counts
    whole = data.Dataset("random", part, part, 5)
    return Trainer(model, whole, Hogwild(team), optimizer, batch_size, progress=False, **options)


def counted(team, trainer):
    return team.allreduce(trainer.replica.counts.copy())


@with_ranks(1, 2, 4)
def test_every_sample_once_an_epoch():
    team = Team()
    for samples, batch_size in ((200, 10), (190, 10), (2, 1), (3, 100)):
        trainer = a_trainer(team, samples, batch_size)
        per_epoch = trainer.steps_per_epoch
        assert per_epoch == -(-samples // (batch_size * team.size)) * team.size
        rate = schedules.cosine(0.5, 2 * per_epoch)
        trainer = a_trainer(team, samples, batch_size, learning_rate=rate)
        before = trainer.replica.parameters.copy()
        history = trainer.fit(1)
        assert (counted(team, trainer) == 1).all()
        trainer.fit(1)
        assert (counted(team, trainer) == 2).all()
        assert trainer.steps == 2 * per_epoch and len(history.epochs) == 2
        # The rate is the schedule's at the last step that all ranks make together.
        assert history.last["learning_rate"] == pytest.approx(rate(2 * per_epoch - team.size))
        weights = trainer.replica.parameters
        assert (team.allgather(weights) == weights).all() and np.abs(weights - before).max() > 1e-4


@with_ranks(1, 3)
def test_checkpoints(folder):
    """A run interrupted in an epoch is resumed for the rest of it; one rank gets the same bits."""

    team = Team()
    one = {"checkpoint": folder, "checkpoint_every": team.size, "optimizer": "adam"}
    cut = a_trainer(team, **one)
    cut.callbacks.append(cut_at(3 * cut.steps_per_epoch // 2, rank=0))
    with pytest.raises(Cut if team.rank == 0 else PeerError):
        cut.fit(3)
    team.recover()
    resumed = a_trainer(team, **one)
    assert resumed.resume()
    left = resumed.round  # rounds of the epoch that are done
    assert resumed.steps == resumed.steps_per_epoch + left * team.size and left > 0
    resumed.fit_to(3)
    counts = counted(team, resumed)
    assert set(np.unique(counts)) == {1, 2} and (counts == 1).sum() == left * 10 * team.size
    assert resumed.steps == 3 * resumed.steps_per_epoch
    if team.size == 1:
        whole = a_trainer(team, optimizer="adam")
        whole.fit(3)
        np.testing.assert_array_equal(resumed.replica.parameters, whole.replica.parameters)


@with_ranks(2)
def test_other_ranks_and_loss_scales(folder):
    """A run is resumed on as many ranks as before only, and each rank has its own loss scale."""
    team = Team()
    single, steps = team.split(team.rank), 10

    def scaled(place):
        trainer = a_trainer(team, checkpoint=place)
        replica, scale = trainer.replica, LossScale(64)
        trainer.strategy.loss_scale, compute = scale, replica.compute_gradient

        def overflows(batch):
            kind.gradient_is_finite = (trainer.steps, team.rank) != (3 * team.size, 1)
            return compute(batch)

        replica.traits = replace(replica.traits, checks_gradient=True)
        kind = type("Overflows", (type(replica),), {})
        replica.__class__, replica.compute_gradient = kind, overflows
        return trainer

    two, one = scaled(f"{folder}/two"), a_trainer(single, checkpoint=f"{folder}/{team.rank}")
    two.fit(1), one.fit(1)
    two.check_agreement()  # the ranks have the same options, though their scales differ now
    expected = [[64, steps], [32, steps - 4]]
    again = scaled(two.saving.checkpoints.folder)
    assert again.resume() and again.strategy.loss_scale.values == expected[team.rank]

    def as_before(strategy=two.strategy):
        """What a checkpoint held when it had rank 0's scale only."""
        values, vectors, own = type(strategy).save(strategy)
        return values | {"loss_scale": own.pop("loss_scale").tolist()}, vectors, own

    two.strategy.save = as_before
    two.saving.write()
    assert again.resume() and again.strategy.loss_scale.values == expected[0]
    for of, place, told in ((single, "two", "ranks 2, not 1"), (team, "0", "ranks 1, not 2")):
        with pytest.raises(CheckpointError, match=told):
            a_trainer(of, checkpoint=f"{folder}/{place}").resume()
        team.recover()
