"""Runs with masters in which a gradient overflows, training diverges or a rule is wrong."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from faults import Around, Counting, numbers
from rank_tests import with_ranks

from numba_kernels import PeerError
from numba_kernels.optimizers import SGD, Adam
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, models
from tutorial_dl.layout import Layout
from tutorial_dl.replica import Traits
from tutorial_dl.runtime.history import History
from tutorial_dl.runtime.master.client import Client
from tutorial_dl.runtime.master.loop import MasterLoop
from tutorial_dl.runtime.master.messages import Kind
from tutorial_dl.runtime.master.tasks import Task
from tutorial_dl.runtime.master.topology import Topology
from tutorial_dl.runtime.master.validation import Part
from tutorial_dl.runtime.master.worker import Computing
from tutorial_dl.strategies import Downpour, ElasticAveraging, GradientEnergyMatching, Rule


class Overflowing(Around):
    """A model that claims to compute in float16; one gradient overflows, and its loss, too.

    `turn`: the number of that gradient, from 1, or None. `left_out`: its number of samples.
    """

    loss_scale, traits = 1.0, Traits(computes_in_float16=True, scales_loss=True)

    def __init__(self, replica, turn=None):
        super().__init__(replica, turns=0, turn=turn, left_out=0, loss_scale=1.0)

    def compute_gradient(self, batch):
        self.turns += 1
        loss, samples = self._replica.compute_gradient(batch)
        if self.turns == self.turn:
            self.gradient[:] = np.inf
            self.left_out = samples
            return float("inf"), samples
        return loss, samples


@with_ranks(3)
def test_gradients_that_overflow():
    """Batches whose gradient overflows are left out, also of the loss."""
    team, digits = Team(), data.digits()
    for rule, optimizer in (
        (Downpour(team=team), Adam(0.01)),
        (Downpour(team=team, every=2), SGD(0.1)),
        (Downpour(team=team, synchronous=True), Adam(0.01)),
        (ElasticAveraging(team=team), SGD(0.5)),
        (ElasticAveraging(team=team, synchronous=True), SGD(0.5)),
        (GradientEnergyMatching(team=team), SGD(0.1)),
    ):
        # In asynchronous training, one worker may be so quick that the other gets fewer than 5
        # batches, or its fifth in the second epoch. So each has a gradient that overflows.
        synchronous = getattr(rule, "synchronous", False)
        turn = 5 if not synchronous or team.rank == team.size - 1 else None
        model = Overflowing(models.softmax(digits, seed=1), turn)
        history = Trainer(model, digits, rule, optimizer, 32, progress=False).fit(2)
        for row in history.epochs:
            assert np.isfinite(row["loss"]) and np.isfinite(row["val_loss"]), (str(rule), row)
        seen = [row["samples_per_second"] * row["seconds"] for row in history.epochs]
        left_out = np.array([model.left_out])
        team.allreduce(left_out)
        assert left_out[0] > 0 and sum(seen) == pytest.approx(2 * 1437 - left_out[0]), (
            str(rule), seen, left_out,
        )  # fmt: skip

    # A synchronous step is the mean over the samples whose gradients are finite.
    half = [None, data.Data.of(*digits.train.take(slice(0, 32)))]
    dataset = data.Dataset("32 digits", half[1], digits.validation, digits.classes)
    model = Overflowing(models.softmax(digits, seed=1), 1 if team.rank == 1 else None)
    before = model.parameters.copy()
    order = Trainer(
        model, dataset, Downpour(team=team, synchronous=True), SGD(0.5), 32, progress=False
    )
    order.fit(1)
    kept = order.batches.order(0)[32 // (team.size - 1) :]  # all but the first worker's share
    alone = models.softmax(digits, seed=1)
    alone.parameters[:] = before
    x, y = half[1].take(slice(None))
    alone.compute_gradient((x[kept], y[kept]))
    np.testing.assert_allclose(model.parameters, before - 0.5 * alone.gradient, rtol=0, atol=1e-6)


@with_ranks(5)
def test_a_run_under_sub_masters_diverges(folder):
    """A diverging run with sub-masters leaves finite checkpoints, and the error names the rank."""
    team, digits = Team(), data.digits()
    rule = Downpour(team=team, upward=1, layout=Layout(masters=2, workers=1))
    trainer = Trainer(
        models.dense(digits, seed=1), digits, rule, SGD(0.1), 32, progress=False,
        checkpoint=folder, learning_rate=lambda step: 0.1 if step < 150 else 1e9,
    )  # fmt: skip
    with pytest.raises(Exception, match=r"is not finite on rank (2|4); use a learning rate below"):
        trainer.fit(9)
    team.recover()
    # How far the top is ahead of the rank that fails is a matter of time; what it saves is not.
    for path in sorted(Path(folder).glob("step_*/*.npz")):
        with np.load(path) as arrays:
            for name in arrays:
                assert np.isfinite(arrays[name]).all(), (path, name)
    team.barrier()


@with_ranks(3)
def test_a_rule_that_pushes_when_nothing_is_due():
    """A rule that pushes when no exchange is due raises an error, since shares would be lost."""

    class Eager(Rule):
        def step(self, x, g, server, due):
            server.push(g, into=x)

    team = Team()
    rule = Eager(every=2, team=team)
    trainer = Trainer(Counting(216), numbers(216), rule, SGD(12.0), 12, progress=False)
    message = "pushed twice, or in a step in which no exchange is due"
    with pytest.raises(Exception, match=message if team.rank else "no worker is left to train"):
        trainer.fit(1)
    team.recover()


class Broken:
    """A star and a team in which every call reports that rank 1 failed because rank 0 had."""

    def __getattr__(self, name):
        def call(*arguments, **options):
            raise PeerError(1, "it ended", 0)

        return call


@with_ranks(1)
def test_numbers_of_ranks():
    """Errors of a star or of a worker's team name ranks as the run does."""
    client, computing = Client.__new__(Client), Computing.__new__(Computing)
    client.star, client.ranks = Broken(), [2, 5]
    computing.team, computing.ranks = Broken(), [2, 5]
    calls = [
        lambda: client.ask(Kind.FINAL),
        client.final_message,
        lambda: computing.gradient(Task(0, 32, 0, 1, 0, 1, 1), 0),
        lambda: computing.measure(Part(0, 1)),
        computing.follow,
        computing.end,
    ]
    for call in calls:
        with pytest.raises(PeerError) as caught:
            call()
        assert str(caught.value) == "rank 5 failed: rank 2 failed: it ended"
        assert (caught.value.rank, caught.value.cause) == (5, 2)
    loop, stars = MasterLoop.__new__(MasterLoop), Topology.__new__(Topology)
    stars.team = SimpleNamespace(barrier=lambda: None)
    stars.at_top, stars.top_ranks = None, []
    stars.in_group = SimpleNamespace(close=lambda: None, team=Broken())
    stars.group_ranks = [2, 5]
    loop.run, loop.stars = SimpleNamespace(lost_ranks=[], history=History()), stars
    loop.close()
    assert loop.run.lost_ranks == [5]
    assert loop.run.history.lost[0].startswith("rank 5 is lost, after the end: rank 5 failed")
