"""Rounds of a quorum: a worker that is stuck holds up nobody, and no sample counts twice."""

import time
from pathlib import Path

import numpy as np
import pytest
from counted_runs import BATCH, SAMPLES, alike
from faults import Counting, numbers
from rank_tests import with_ranks

from numba_kernels.optimizers import SGD
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data
from tutorial_dl.replica import SoftmaxReplica
from tutorial_dl.runtime.callback import Callback
from tutorial_dl.strategies import DilocoAsync, LocalSteps

STUCK = 3  # a rank


@pytest.mark.thorough(but="4")
@with_ranks(4, 5)
def test_a_worker_that_is_stuck_holds_up_nobody(folder):
    """It computes its first gradient until three epochs are done; that is not used any more."""
    team, go = Team(), Path(folder, "go")

    def delay():
        end = time.monotonic() + 600
        while team.rank == STUCK and not go.exists() and time.monotonic() < end:
            time.sleep(0.01)

    class Opens(Callback):
        def on_epoch_end(self, trainer, row):
            if row["epoch"] == 3:
                go.touch()

    rule = DilocoAsync(2, 1.0, 0.0, quorum=2, grace=0.05, team=team)
    trainer = Trainer(
        Counting(SAMPLES, delay), numbers(SAMPLES), rule, SGD(1.0), BATCH, progress=False,
        callbacks=[Opens()],
    )  # fmt: skip
    history = trainer.fit(6)
    assert go.exists() and not history.lost
    assert [row["epoch"] for row in history.epochs] == [*range(1, 7)]
    for row in history.epochs:
        assert row["samples_per_second"] * row["seconds"] == pytest.approx(SAMPLES, rel=1e-6)
    assert alike(team, trainer.replica.parameters)
    if team.rank == 0:
        batches = -(-SAMPLES // BATCH) * 6
        assert sum(history.workers.values()) == batches and trainer.steps == batches
        assert sum(history.staleness.values()) > 0


@with_ranks(3)
def test_when_all_come_in_time_it_is_diloco():
    """Both workers' steps in each round, as in local steps with one rank for each worker."""
    team, found = Team(), []
    generator = np.random.default_rng(3)
    part = data.Data.of(generator.normal(size=(160, 7)), generator.integers(0, 5, 160))
    whole = data.Dataset("random", part, part, 5)
    options = dict(learning_rate=0.5, progress=False, shuffle=False)
    # An epoch is a round here: a worker's column is one batch, half of the samples.
    for strategy, size in (
        (DilocoAsync(1, 0.7, 0.9, quorum=2, grace=600.0, team=team), 80),
        (LocalSteps(team.split(int(team.rank < 2)), 1), 160),
    ):
        if strategy.team.size == 1:  # the rank that is left over
            continue
        replica = SoftmaxReplica(7, 5, seed=1, dtype="float64")
        trainer = Trainer(replica, whole, strategy, "sgd", size, **options)
        trainer.fit(4)
        found.append(trainer.replica.parameters.copy())
    if len(found) == 2:
        np.testing.assert_allclose(*found, rtol=0, atol=1e-12)
