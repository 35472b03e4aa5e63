"""Runs with a master use all of a Trainer: checkpoints, schedules, callbacks, timeline."""

import threading
import time
from itertools import pairwise
from pathlib import Path

import clock
import numpy as np
import pytest
from counted_runs import (
    EPOCHS,
    SAMPLES,
    alike,
    counted,
    counting,
    resumed_bit_for_bit,
    run_until,
    some_digits,
)  # fmt: skip
from faults import Counting, numbers, strike
from rank_tests import with_ranks

from numba_kernels.optimizers import SGD
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, data, models, strategies, timeline
from tutorial_dl.checkpoint.format import CheckpointError
from tutorial_dl.layout import Layout
from tutorial_dl.runtime.callback import Callback
from tutorial_dl.strategies import Downpour, Serial
from tutorial_dl.training import schedules
from tutorial_dl.training.callbacks import EarlyStopping, Target
from tutorial_dl.training.span_kinds import COMMUNICATING, COMPUTING, WAITING, kind

# Bit for bit -----------------------------------------------------------------------------------


def a_trainer(team, folder=None, optimizer="adam", strategy=None, samples=203, **options):
    digits = some_digits(samples)
    strategy = strategy or strategies.Downpour(synchronous=True, team=team)
    model = models.dense(digits, seed=1)
    options = {"batch_size": 20} | options
    return Trainer(model, digits, strategy, optimizer, progress=False, checkpoint=folder, **options)


def slots_of(strategy):
    """The optimizer's state, which the master has."""
    state = getattr(strategy, "state", None)
    return [] if state is None else state.slots


@with_ranks(3)
def test_resumed_runs_end_with_the_same_bits(folder):
    """The synchronous form ends with the same bits wherever it was interrupted."""
    team = Team()
    rate = schedules.warm_up(schedules.cosine(0.1, 33), 8, start=0.01)
    for number, options in enumerate((
        {"optimizer": "sgd"},
        {"optimizer": "adam"},
        {"optimizer": "momentum", "learning_rate": rate, "clip_norm": 0.5, "accumulate": 2},
    )):  # fmt: skip

        def make(place, options=options, **more):
            return a_trainer(team, place, **options, **more)

        # In the middle of an epoch, in its last round, and in the round after it.
        cuts = (4, 19, 19), (None, 11, 11), (5, 23, 23), (4, 22, 22)
        resumed_bit_for_bit(make, f"{folder}/{number}", cuts, slots_of)


@with_ranks(3)
def test_a_resumed_master_corrects_the_momentum(folder):
    """Resumed at another rate, a run ends with the bits of one whose schedule changes there."""

    class WithoutRate(Downpour):
        """Its checkpoints are those of earlier versions, without the rate of the velocity."""

        def save(self):
            numbers, vectors = super().save()
            return {"updates": numbers["updates"]}, vectors

    def made(correct, rate, rule=Downpour, at=None):
        rule = rule(synchronous=True, team=team)
        return a_trainer(team, at, "momentum", rule, learning_rate=rate, correct_momentum=correct)

    team, whole = Team(), {}
    for correct in (True, False):
        trainer = made(correct, lambda step: 0.1 if step < 14 else 0.02)
        trainer.fit(2)
        whole[correct] = trainer.replica.parameters.copy()
    for rule in (Downpour, WithoutRate):
        place = Path(folder, rule.__name__)
        run_until(made(True, 0.1, rule, place), 14)
        for correct, rate in ((True, 0.02), (True, lambda step: 0.02), (False, 0.02)):
            resumed = made(correct, rate, rule, place)
            assert resumed.resume() and resumed.steps == 14
            resumed.saving = None
            resumed.fit_to(2)
            expected = whole[correct and rule is Downpour]
            np.testing.assert_array_equal(expected, resumed.replica.parameters)


@with_ranks(3)
def test_seconds_before_a_checkpoint_count_once(folder):
    """Interrupted when the second epoch has begun and the first has not ended."""

    class Steps(Callback):
        """A clock that shows the steps of the run that it is a callback of."""

        steps = 0

        def now(self):
            return float(self.steps)

        def on_step_end(self, trainer, loss, samples):
            self.steps = trainer.steps
            if self.steps == 20:
                go_on.touch()

    team, go_on = Team(), Path(folder, "go on")

    def held():
        while not go_on.exists():
            time.sleep(0.01)

    cut = counting(team, folder)
    cut.clock = Steps()
    cut.callbacks.append(cut.clock)
    undo = strike("gradient", 1, held) if team.rank == 2 else lambda: None
    run_until(cut, 20)  # an epoch has 18 steps; one of the first epoch's is held until then
    undo()
    resumed = counting(team, folder)
    resumed.clock = Steps()  # it stands still, as it is no callback
    assert resumed.resume()
    if team.rank == 0:
        begun = [epoch for epoch, _ in resumed.loop.resumed["sums"]]
        assert begun == [0, 1] and resumed.steps == 20
    resumed.fit_to(EPOCHS)
    assert resumed.history.column("seconds") == [20.0, 0.0, 0.0]


# Every sample once -----------------------------------------------------------------------------


def every_sample(folder, steps):
    """A run is interrupted in an epoch and resumed on other ranks: each sample is used once."""
    team = Team()
    for synchronous in (False, True):
        for step in steps:  # an epoch has 18 steps
            place = Path(f"{folder}_{synchronous}_{step}")
            cut = counting(team, place, synchronous)
            run_until(cut, step)
            pairs = team.split(team.rank // 2)
            for of, where in (
                (team, {}),
                (pairs, {}),  # one worker in place of three
                (team, {"layout": Layout(masters=1, workers=1, devices=3)}),
            ):
                resumed = counting(of, place, synchronous, **where)
                assert resumed.resume()
                assert resumed.steps == step or not synchronous
                resumed.saving = None  # several teams resume from the same folder
                resumed.fit_to(EPOCHS)
                counted(resumed)
                assert alike(of, resumed.replica.parameters)
                team.barrier()
    # If this trainer can't resume the run, every rank raises a one-line error.
    for options, says in (
        ({"synchronous": False}, "was written with Downpour(every=1, synchronous=True"),
        ({"synchronous": True, "every": 2}, "Downpour(every=2, synchronous=True"),
        ({"synchronous": True, "batch_size": 24}, "written with batch size 12, not 24"),
    ):
        with pytest.raises((CheckpointError, RuntimeError)) as caught:
            counting(team, place, **options).resume()
        assert says in str(caught.value) and "\n" not in str(caught.value)
        assert (team.rank == 0) == isinstance(caught.value, CheckpointError)
        team.recover()
    with pytest.raises(ValueError, match="already holds checkpoints"):
        counting(team, place, synchronous=True).fit(1)


@pytest.mark.thorough
def test_every_sample_once_after_a_resume(on_ranks, tmp_path):
    on_ranks(4, every_sample, str(tmp_path / "window"), [18, 35])
    on_ranks(4, every_sample, str(tmp_path / "messages"), [23], env={"NUMBA_KERNELS_WINDOW": "0"})


# All else of a Trainer -------------------------------------------------------------------------


def options(folder):
    """Schedules, clipping, accumulation, callbacks, a second fit and files work with a master."""
    team = Team()

    # Compare the synchronous form with serial training on the same batches.
    rate = schedules.warm_up(schedules.cosine(0.5, 30), 5, start=0.01)
    given = {"optimizer": "sgd", "learning_rate": rate, "clip_norm": 0.3, "accumulate": 2}
    alone = a_trainer(team, strategy=Serial(team.split(team.rank)), samples=203, **given)
    alone.fit(EPOCHS)
    together = a_trainer(team, **given)
    together.fit(EPOCHS)
    np.testing.assert_allclose(
        together.replica.parameters, alone.replica.parameters, rtol=0, atol=2e-6
    )
    assert together.history.column("val_loss") == pytest.approx(alone.history.column("val_loss"))
    assert (
        together.history.last["learning_rate"]
        == alone.history.last["learning_rate"]
        == (pytest.approx(rate(32)))
    )
    unclipped = a_trainer(team, **given | {"clip_norm": None})
    unclipped.fit(EPOCHS)
    assert np.abs(unclipped.replica.parameters - alone.replica.parameters).max() > 1e-3

    # Callbacks on the master see the validation; all ranks end with the best weights.
    class Seeing(Callback):
        rows, weights = [], {}

        def on_epoch_end(self, trainer, row):
            assert trainer.team.rank == 0
            found = trainer.replica.evaluate([trainer.dataset.validation.take(slice(None))])
            assert found["loss"] == pytest.approx(row["val_loss"], rel=1e-5)
            self.weights[row["epoch"]] = trainer.replica.parameters.copy()

    for strategy in (Downpour(team=team), Downpour(synchronous=True, team=team)):
        seeing, stopping = Seeing(), EarlyStopping("loss", 2, mode="max", restore_best=True)
        trainer = a_trainer(
            team, optimizer="sgd", strategy=strategy, callbacks=[seeing, stopping],
            learning_rate=0.05,
        )  # fmt: skip
        history = trainer.fit(200)  # the loss falls, so the first epoch is the best by "max"
        assert "loss has not improved since epoch 1" in trainer.stopped
        # (Asynchronous workers go on training while a slow one validates.)
        assert len(history.epochs) == 3 if strategy.synchronous else 3 <= len(history.epochs) < 200
        if team.rank == 0:
            np.testing.assert_array_equal(trainer.replica.parameters, seeing.weights[1])
        assert alike(team, trainer.replica.parameters)
        rows = np.array([row["val_loss"] for row in history.epochs])
        assert alike(team, rows)
    trainer = a_trainer(team, strategy=Downpour(team=team), callbacks=[Target("val_loss", 100.0)])
    assert len(trainer.fit(200).epochs) < 200 and "has reached 100" in trainer.stopped

    # A second fit continues, and collective methods work.
    trainer = a_trainer(team, strategy=Downpour(team=team), samples=1437)
    trainer.fit(2)
    first = trainer.steps
    history = trainer.fit(2)
    assert [row["epoch"] for row in history.epochs] == [1, 2, 3, 4]
    assert trainer.steps == 2 * first and alike(team, trainer.replica.parameters)
    assert sum(history.staleness.values()) == sum(history.workers.values()) == trainer.steps
    found = trainer.evaluate()
    assert found["loss"] == pytest.approx(history.last["val_loss"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(history.last["val_accuracy"])
    outputs = trainer.predict(trainer.dataset.validation)
    right = (outputs.argmax(1) == trainer.dataset.validation.take(slice(None))[1]).mean()
    assert right == pytest.approx(found["accuracy"])

    # With files, each sample is used once, although batches are read ahead.
    if team.rank == 0:
        x = np.arange(SAMPLES, dtype=np.float32)[:, None]
        for i, (first, end) in enumerate(pairwise((0, 0, 1, 100, SAMPLES))):
            part = data.Data.of(x[first:end], x[first:end, 0])
            data.write_hdf5(part, Path(folder, f"{i}.h5"))
        data.write_hdf5(data.Data.of(x[:20], x[:20, 0]), Path(folder, "kept.hdf5"))
    team.barrier()
    for synchronous in (False, True):
        files = data.load(f"{folder}/*.h5", validation=f"{folder}/kept.hdf5")
        files.train.window = 50 * files.train.table.sample_bytes
        trainer = counting(team, synchronous=synchronous, data=files)
        trainer.fit(EPOCHS)
        counted(trainer)
    assert not [t for t in threading.enumerate() if t.name == "reading ahead"]


@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [3, 4])
def test_all_of_a_trainer_holds_with_a_master(on_ranks, tmp_path, ranks):
    on_ranks(ranks, options, str(tmp_path))


SLEEP = 0.2


def spans(window):
    """The timeline has all ranks, and shows that a fast worker waits for a slow one."""
    team = Team()
    delay = (lambda: time.sleep(SLEEP)) if team.rank == 1 else None
    seen = timeline.Timeline()
    rule = Downpour(synchronous=True, team=team)
    trainer = Trainer(
        Counting(SAMPLES, delay), numbers(SAMPLES), rule, SGD(1.0), 72, progress=False,
        timeline=seen,
    )  # fmt: skip
    trainer.fit(2)
    if team.rank:
        return
    kinds = {"push": COMMUNICATING, "pull": COMMUNICATING, "serve": COMPUTING}
    assert {name: kind(name) for name in kinds} == kinds
    rows, shares = seen.rows, seen.shares()
    names = [{name for name, *_ in row.spans} for row in rows]
    assert "serve" in names[0] and "push" not in names[0]
    for worker in (1, 2):
        assert {"data", "gradient", "push", "pull", "update", "validation"} <= names[worker]
    # In each of 6 updates the fast worker waits for the slow one, in a span within its push.
    slept = 6 * SLEEP * 1e9
    fast = rows[2].end - rows[2].begin
    assert shares[2]["waiting"] > 0, shares
    waited = "a worker that waits for a slow one is shown to wait, of the time missing"
    clock.note(waited, 1 - shares[2]["waiting"] * fast / slept)
    assert shares[1]["computing"] * (rows[1].end - rows[1].begin) > 0.95 * slept
    pushes = [(b, e) for name, b, e in rows[2].spans if name == "push"]
    waits = [(b, e) for name, b, e in rows[2].spans if kind(name) == WAITING]
    inside = sum(e - b for b, e in waits if any(p <= b and e <= q for p, q in pushes))
    assert inside > 0
    clock.note(f"{waited} in its push", 1 - inside / slept)


@pytest.mark.parametrize("window", ["1", "0"])
def test_timeline(on_ranks, window):
    on_ranks(3, spans, window, env={"NUMBA_KERNELS_WINDOW": window})
