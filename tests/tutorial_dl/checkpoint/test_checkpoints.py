"""Checkpoints: resumed training gives the same bits, also on other ranks; damage is found."""

import os
import random
from contextlib import redirect_stderr
from io import StringIO
from itertools import count
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from counted_runs import EPOCHS, Cut, at_step, resumed_bit_for_bit, run_until, some_digits
from rank_tests import with_ranks

from numba_kernels.errors import PeerError
from tutorial_dl import Team, Trainer, data, models, strategies
from tutorial_dl.checkpoint import format
from tutorial_dl.checkpoint.format import CheckpointError
from tutorial_dl.replica.consistency import DriftError
from tutorial_dl.training import schedules
from tutorial_dl.training.callbacks import Callback, EarlyStopping


def trainer(team, folder=None, rule="adam", compression=None, resume=False, seed=0, **options):
    digits = some_digits(203)
    strategy = strategies.Synchronous(team, compression=compression)
    model, options = models.dense(digits, seed=seed), dict(progress=False) | options
    made = Trainer(model, digits, strategy, rule, 20, checkpoint=folder, **options)
    if resume:
        assert made.resume()
    return made


@pytest.mark.thorough(but="2")
@with_ranks(1, 2, 3)
def test_resumed_runs_end_with_the_same_bits(folder):
    team = Team()
    rate = schedules.warm_up(schedules.cosine(0.1, 33), 8, start=0.01)
    for number, options in enumerate((
        {},
        {"rule": "momentum", "learning_rate": rate, "clip_norm": 0.5, "accumulate": 2},
        {"rule": "lamb", "learning_rate": rate},
        {"rule": "momentum", "compression": "top_k"},
        {"rule": "sgd", "compression": "powersgd"},
    )):  # fmt: skip

        def make(place, options=options, **more):
            stops = [EarlyStopping(restore_best=True)]
            return trainer(team, place, callbacks=stops, **options, **more)

        cuts = (4, 19, 16), (None, 19, 11), (11, 24, 22)
        state = lambda strategy: strategy.update.state.slots  # noqa: E731
        resumed_bit_for_bit(make, f"{folder}/{number}", cuts, state)


@with_ranks(3)
def test_on_another_number_of_ranks(folder):
    """A run resumed on another number of ranks ends like one that was never interrupted.

    It is written on 3 ranks and resumed on 2 and on 1, or written on 1 and resumed on 3.
    """
    team = Team()
    alone = trainer(team.split(team.rank), rule="momentum")
    alone.fit(EPOCHS)
    run_until(trainer(team, Path(folder, "3"), "momentum", checkpoint_every=4), 19)
    single = team.split(team.rank)
    mine = Path(folder, f"1_{team.rank}")
    run_until(trainer(single, mine, "momentum", checkpoint_every=4), 19)
    team.recover()
    few = team.split(int(team.rank == 2))  # ranks 0 and 1; rank 2 alone
    for of, place in (
        (few, Path(folder, "3")),
        (team.split(team.rank), Path(folder, "3")),
        (team, Path(folder, "1_0")),
    ):
        resumed = trainer(of, place, "momentum", checkpoint_every=1000)
        # Three teams resume from one folder, which they only read.
        assert resumed.resume() and resumed.steps == 16
        resumed.saving = None
        resumed.fit_to(EPOCHS)
        assert resumed.steps == 33
        np.testing.assert_allclose(
            resumed.replica.parameters, alone.replica.parameters, atol=1e-5, rtol=0
        )
        team.barrier()


def between_nodes(folder):
    """A run on two nodes writes what a run on one node resumes from, and the other way round.

    Its state is divided in the same way, and both end like a run of one process.
    """
    two = Team()
    with mock.patch.dict(os.environ, NUMBA_KERNELS_NODE="3"):
        one = Team()
    assert (len(two.nodes), len(one.nodes)) == (2, 1)
    alone = trainer(two.split(two.rank), rule="adam")
    alone.fit(EPOCHS)
    for number, (writes, reads) in enumerate(((two, one), (one, two))):
        place = Path(folder, str(number))
        run_until(trainer(writes, place, "adam", checkpoint_every=4), 19)
        reads.recover()  # the cut has ended all calls of this process
        resumed = trainer(reads, place, "adam", checkpoint_every=1000)
        assert resumed.resume() and resumed.steps == 16
        resumed.fit_to(EPOCHS)
        assert resumed.steps == 33
        np.testing.assert_allclose(
            resumed.replica.parameters, alone.replica.parameters, atol=1e-4, rtol=0
        )
        assert (reads.allgather(resumed.replica.parameters) == resumed.replica.parameters).all()


def test_between_one_node_and_two(on_ranks, tmp_path):
    on_ranks(3, between_nodes, str(tmp_path), env={"NUMBA_KERNELS_NODE": "2"})


@with_ranks(3)
def test_residuals_on_fewer_ranks(folder):
    """Residuals that ranks have not sent yet are neither lost nor doubled."""
    team = Team()
    made = trainer(team, folder, rule="sgd", compression="top_k", checkpoint_every=4)
    run_until(made, 5)
    sums = []
    for of in (team, team.split(int(team.rank == 2))):
        resumed = trainer(of, folder, rule="sgd", compression="top_k", resume=True)
        left = resumed.strategy.update.left.residual.astype(np.float64)
        sums.append(of.allreduce(left) / of.size)
    assert np.abs(sums[0]).max() > 0
    np.testing.assert_allclose(sums[1], sums[0], atol=1e-7)


@with_ranks(2)
def test_random_numbers(folder):
    """After a resume, Python, NumPy and the model draw the numbers that they would have drawn."""

    class Drawing:
        def on_epoch(self):
            return [random.random(), random.gauss(0, 1), *np.random.normal(size=3)]

    team = Team()
    made = trainer(team, folder)
    made.replica.random = np.array([team.rank, 2**32 - 1], np.int64)
    random.seed(team.rank)
    np.random.seed(team.rank)
    random.gauss(0, 1), np.random.normal()  # each generator has one more number in store now
    made.fit(1)
    seeds = made.replica.random.copy()
    drawn = Drawing().on_epoch()
    other = trainer(team, folder)
    other.replica.random = np.zeros(2, np.int64)
    assert other.resume()
    np.testing.assert_array_equal(other.replica.random, seeds)
    assert Drawing().on_epoch() == drawn
    # At the start, each rank took rank 0's seeds and advanced them by its number.
    table = team.allgather(seeds.astype(np.float64))
    assert table[0].tolist() == [0, 2**32 - 1]
    assert len({row[0] for row in table}) == team.size


@with_ranks(2)
def test_damage_is_found(folder):
    """An error names every kind of damage, and the checkpoint before it is used."""
    team = Team()
    run_until(trainer(team, folder, checkpoint_every=4), 19)  # an epoch has 11 steps
    names = sorted(path.name for path in Path(folder).iterdir())
    assert names == ["step_00000011", "step_00000012", "step_00000016"]
    newest = Path(folder, "step_00000016")

    def resumed():
        said = StringIO()
        with redirect_stderr(said):
            made = trainer(team, folder, resume=True)
        return made.steps, said.getvalue()

    for name in ("rank_00000.npz", "rank_00001.npz", "manifest"):
        path = newest / name
        team.barrier()
        whole = path.read_bytes()
        team.barrier()
        for harm in (
            lambda b: b[: len(b) // 2],
            lambda b: b[:-1],
            lambda b: b"",
            lambda b: b[: len(b) // 3] + bytes([b[len(b) // 3] ^ 1]) + b[len(b) // 3 + 1 :],
            None,
        ):
            if team.rank == 0:
                path.unlink() if harm is None else path.write_bytes(harm(whole))
            team.barrier()
            steps, said = resumed()
            assert steps == 12
            told = team.allreduce(np.array([float(str(path) in said)]), "sum")[0]
            assert told >= 1 and said.count("\n") <= 1, said
            if team.rank == 0:
                path.write_bytes(whole)
            team.barrier()
    assert resumed() == (16, "")
    team.barrier()
    if team.rank == 0:
        for step in names:
            Path(folder, step, "manifest").write_text("{}")
    team.barrier()
    with pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged"):
        trainer(team, folder, resume=True)


@with_ranks(2)
def test_what_is_refused(folder):
    team = Team()
    trainer(team, folder).fit(1)
    with pytest.raises(ValueError, match="already holds checkpoints: resume"):
        trainer(team, folder).fit(1)
    for options, message in (
        ({"rule": "sgd"}, r"was written with the optimizer Adam\(.*\), not SGD\("),
        ({"clip_norm": 1.0}, "was written with clip norm 0, not 1.0"),
        ({"accumulate": 2}, "was written with pieces a batch 1, not 2"),
    ):
        with pytest.raises(CheckpointError, match=message):
            trainer(team, folder, resume=True, **options)
        team.recover()
    digits = data.digits()
    other = Trainer(models.softmax(digits), digits, team=team, progress=False, checkpoint=folder)
    with pytest.raises(CheckpointError, match=r"its layer 'layer_1/kernel' has shape \[64, "):
        other.resume()
    team.recover()
    with pytest.raises(ValueError, match=r"resume\(\) needs Trainer\(checkpoint=folder\)"):
        Trainer(models.softmax(digits), digits, team=team, progress=False).resume()
    full = trainer(team, Path(folder, "elsewhere"))
    assert not full.resume()

    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    real = os.fsync
    if team.rank == 1:
        os.fsync = no_space
    try:
        with pytest.raises((CheckpointError, PeerError), match="No space left on device"):
            full.fit(1)
    finally:
        os.fsync = real


@with_ranks(2)
def test_a_model_that_drifted_is_not_saved(folder):
    """A checkpoint is not written if ranks hold different models."""

    def bend(trainer):
        trainer.replica.parameters[:] += trainer.team.rank

    team = Team()
    bent = trainer(
        team, folder, "sgd", compression="bf16", checkpoint_every=4, callbacks=[at_step(6, bend)]
    )
    with pytest.raises(DriftError):
        bent.fit(1)
    assert bent.steps == 8 and bent.saving.checkpoints.steps() == [4]


@with_ranks(2)
def test_after_a_failure_all_ranks_go_on_alike(folder):
    """All ranks continue alike if a failure came before some had changed rate or run callbacks."""

    class FailsOnce(Callback):
        def on_epoch_end(self, trainer, row):
            if row["epoch"] == 2 and trainer.team.rank == 0 and not hasattr(self, "failed"):
                self.failed = True
                raise Cut

    team = Team()
    made = trainer(
        team, None, "momentum", compression="bf16",
        clip_norm=1.0,
        # The loss falls in epochs 1 and 2; then the learning rate is far too high.
        learning_rate=lambda step: 0.1 * 0.98**step if step < 26 else 5.0,
        callbacks=[FailsOnce(), EarlyStopping(restore_best=True)],
    )  # fmt: skip
    read, failed = made.batches.epoch, []

    def fails_once(epoch, start):
        for number, batch in enumerate(read(epoch, start)):
            if team.rank == 1 and number == 4 and not failed:
                failed.append(1)
                raise Cut
            yield batch

    made.batches.epoch = fails_once
    for _ in range(2):
        with pytest.raises((Cut, PeerError)):
            made.fit(EPOCHS)
        team.recover()
    made.fit(EPOCHS)
    assert made.callbacks[1].best_epoch < 3
    rows = team.allgather(np.append(made.replica.parameters, made.callbacks[1].best_epoch))
    assert (rows == rows[0]).all()


@with_ranks(1)
def test_no_checkpoint_is_ever_half_there(folder):
    """Wherever writing is interrupted, the old or the new checkpoint can be read, whole."""
    team = Team()
    made = trainer(team, folder, checkpoint_every=1, keep_checkpoints=2)
    run_until(made, 4)
    made.callbacks.clear()
    real = {name: getattr(os, name) for name in ("fsync", "rename", "open", "mkdir", "rmdir")}

    def write(step, before_call):
        """Write the checkpoint of `step`, but only up to the n-th system call."""
        calls = count()

        def counted(name):
            def call(*arguments, **options):
                if next(calls) == before_call:
                    raise Cut
                return real[name](*arguments, **options)

            return call

        for name in real:
            setattr(os, name, counted(name))
        made.steps = step
        try:
            made.saving.write()
            return True
        except Cut:
            return False
        finally:
            for name, function in real.items():
                setattr(os, name, function)

    cuts, step = 0, 4
    for before_call in count():
        newest = format.Checkpoints(team, folder).newest()
        assert newest.values["place"]["steps"] in (step - 1, step)
        step = newest.values["place"]["steps"] + 1
        if write(step, before_call):
            break
        cuts += 1
        for left in Path(folder).glob("step_*"):
            assert not format.Checkpoints(team, folder)._problem(left)
    assert cuts > 6
