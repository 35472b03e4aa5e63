"""Workers raise, die, sleep or compute NaN: the others train on and report it."""

import os
import random
import signal
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from faults import MOMENTS, Fault, Noting, die, fail, noted, numbered_digits, strike
from on_ranks import one_call

from numba_kernels import PeerError, launch
from numba_kernels.optimizers import SGD, Adam
from numba_kernels.team.team import Team
from tutorial_dl import Trainer, models
from tutorial_dl.cli.train import leave
from tutorial_dl.layout import Layout
from tutorial_dl.runtime.errors import TrainingError
from tutorial_dl.runtime.master import master as hub
from tutorial_dl.runtime.master.client import GivenUp
from tutorial_dl.runtime.master.worker import Worker
from tutorial_dl.strategies import (
    DilocoAsync,
    Downpour,
    ElasticAveraging,
    GradientEnergyMatching,
)

EPOCHS = 10
FORMS = ("downpour", "downpour synchronous", "elastic", "elastic synchronous", "energy")
MESSAGES = {"NUMBA_KERNELS_WINDOW": "0"}


def rule_of(form: str, team, **where):
    """(a new rule, its optimizer) with which softmax on digits is above 0.93."""
    together = form.endswith("synchronous")
    if form.startswith("downpour"):
        return Downpour(synchronous=together, team=team, **where), Adam(0.02)
    if form.startswith("elastic"):
        return ElasticAveraging(synchronous=together, team=team, **where), SGD(0.5)
    if form == "quorum":
        return DilocoAsync(2, 1.0, 0.0, quorum=1, grace=0.01, team=team, **where), Adam(0.02)
    return GradientEnergyMatching(team=team, **where), SGD(0.1)


def a_trainer(team, form, folder, turn, delay=None, batch_size=32, **where):
    digits, numbered = numbered_digits()
    rule, optimizer = rule_of(form, team, **where)
    place = Path(folder, f"{turn}")
    place.mkdir(exist_ok=True)
    replica = Noting(models.softmax(digits, seed=1), place / f"{team.rank}.noted", delay)
    together = batch_size if form.endswith("synchronous") else batch_size // 2
    return Trainer(replica, numbered, rule, optimizer, together, progress=False)


def moment_of(chance, form, ranks) -> tuple[int, str, int]:
    """(worker's rank, moment, the turn at which it fails)"""
    moment = chance.choice([m for m in MOMENTS if m != "waiting"])
    # The turn is early, because on a busy machine one worker may get very few tasks.
    return chance.randrange(1, ranks), moment, chance.randrange(1, 4 if moment[0] == "v" else 60)


def die_at(moment: str, turn: int) -> None:
    """End this rank by SIGKILL at the moment; on a busy machine others may do all validations."""
    strike(moment, turn, die)
    if moment == "validating":
        strike("gradient", 80, die)


def check_end(trainer, folder, lost: list[int], samples: int, batch: int):
    """Check a run that ended well without some of its workers."""
    history = trainer.history
    assert [row["epoch"] for row in history.epochs] == [*range(1, EPOCHS + 1)], history.lost
    assert history.last["val_accuracy"] >= 0.93, history
    assert len(history.lost) == len(lost), history.lost
    for rank in lost:
        (line,) = [line for line in history.lost if f"the worker on rank {rank} " in line]
        assert " is lost" in line
    # In each epoch, every sample has reached the master exactly once.
    for row in history.epochs:
        seen = row["samples_per_second"] * row["seconds"]
        assert seen == pytest.approx(samples, abs=1e-3), (row["epoch"], seen)
    # Every sample was computed, and only tasks of lost workers were computed again.
    times = noted(folder)
    assert len(times) == samples and times.min() == EPOCHS
    assert EPOCHS * samples <= times.sum()
    if not trainer.strategy.quorum:  # whose workers also do tasks of those that are late
        assert times.sum() <= EPOCHS * samples + len(lost) * batch


# A worker that raises --------------------------------------------------------------------------


def raising(folder, seed):
    """Provoke one fault after the other in one world, with all forms and at random moments."""
    team, chance = Team(), random.Random(seed)
    for turn, form in enumerate(FORMS):
        who, moment, when = moment_of(chance, form, team.size)
        trainer = a_trainer(team, form, folder, turn)
        undo = strike(moment, when, fail) if team.rank == who else lambda: None
        try:
            trainer.fit(EPOCHS)
        except Fault:
            assert team.rank == who
        else:
            assert team.rank != who, (form, moment, when)
            check_end(trainer, Path(folder, str(turn)), [who], 1437, 32)
            if moment == "data":
                assert "Fault: by purpose" in trainer.history.lost[0]
        undo()
        team.recover()
        if turn == 0:  # the same trainer continues with all ranks
            history = trainer.fit(1)
            assert len(history.epochs) == EPOCHS + 1 and len(history.lost) == 1
            weights = trainer.replica.parameters
            assert (team.allgather(weights) == weights).all()
            assert trainer.evaluate()["accuracy"] == history.last["val_accuracy"]
    # If all workers fail, the master raises one error.
    trainer = a_trainer(team, "downpour", folder, "all")
    undo = strike("gradient", 5, fail) if team.rank else lambda: None
    with pytest.raises(Fault if team.rank else TrainingError) as caught:
        trainer.fit(EPOCHS)
    if not team.rank:
        assert str(caught.value).startswith("no worker is left to train: the worker on rank")
        assert "\n" not in str(caught.value)
    undo()
    team.recover()
    # If a loss or gradient is NaN, all ranks raise one error that names it.
    trainer = a_trainer(team, "downpour", folder, "nan")
    if team.rank == 2:
        right = trainer.replica._replica.compute_gradient

        def wrong(batch):
            found = right(batch)
            trainer.replica.gradient[3] = np.nan
            return found

        trainer.replica._replica.compute_gradient = wrong
    with pytest.raises((TrainingError, RuntimeError, FloatingPointError)) as caught:
        trainer.fit(EPOCHS)
    if team.rank != 2:
        assert "the gradient is not finite on rank 2; use a learning rate" in str(caught.value)
    team.recover()
    assert (team.allreduce(np.ones(5)) == team.size).all()


@pytest.mark.thorough
@pytest.mark.parametrize(("ranks", "env"), [(4, None), (3, MESSAGES)])
def test_workers_that_raise(on_ranks, tmp_path, ranks, env):
    on_ranks(ranks, raising, str(tmp_path), int(time.time()), env=env)


# A worker that dies ----------------------------------------------------------------------------


@contextmanager
def may_be_lost(expected=lambda error: False):
    """This process ends with status 0 if all is well; an error is shown unless it is expected."""
    launch.can_be_lost()
    status = 1
    try:
        yield
        status = 0
    except Exception as error:
        if not expected(error):
            traceback.print_exception(error)
    finally:
        leave(status)


def killed(folder, seed, form, kills, devices):
    """`kills` workers end by SIGKILL; in a worker of several ranks, any one of them dies."""
    team, chance = Team(), random.Random(seed)
    workers = (team.size - 1) // devices
    moments = MOMENTS if devices == 1 else ("data", "gradient", "validating")
    # The master identifies each worker by its first rank.
    lost = [1 + number * devices for number in chance.sample(range(workers), kills)]
    for leader in lost:
        mate, moment = chance.randrange(devices), chance.choice(moments)
        when = chance.randrange(1, 4 if moment == "validating" else 30)
        if team.rank == leader + mate:
            die_at(moment, when)
    where = {"layout": Layout(masters=1, workers=workers, devices=devices)}
    # A worker whose rank has died is lost as a whole, with its other ranks.
    mates = {rank + mate for rank in lost for mate in range(devices)}
    with may_be_lost(lambda _: team.rank in mates):
        trainer = a_trainer(team, form, folder, "killed", **where)
        trainer.fit(EPOCHS)
        if devices == 1:
            check_end(trainer, Path(folder, "killed"), lost, 1437, 32)
        assert len(trainer.history.lost) == kills, trainer.history.lost
        assert trainer.history.last["val_accuracy"] >= 0.93, trainer.history


def group_killed(folder, seed, form, workers, masters):
    """All workers end by SIGKILL, except those of one sub-master."""
    team, chance = Team(), random.Random(seed)
    layout = Layout(masters=masters, workers=workers)
    own = {role.rank: role.master for role in layout.roles() if role.role == "worker"}
    kept = chance.choice(sorted(set(own.values())))
    lost = [rank for rank, master in own.items() if master != kept]
    if team.rank in lost:
        own = random.Random(seed + team.rank)
        # (With several workers, one of them may validate nearly everything.)
        moments = MOMENTS if workers == 1 else MOMENTS[:-1]
        moment = own.choice(moments)
        die_at(moment, own.randrange(1, 4 if moment == "validating" else 30))
    with may_be_lost():
        trainer = a_trainer(team, form, folder, "killed", layout=layout)
        trainer.fit(EPOCHS)
        check_end(trainer, Path(folder, "killed"), lost, 1437, 32)


def rests(folder, seed, form):
    """A group without further shares loses its only worker while that validates."""
    team = Team()
    layout = Layout(masters=2, workers=1)
    workers = [role.rank for role in layout.roles() if role.role == "worker"]
    lost = random.Random(seed).choice(workers)
    if team.rank in workers:  # so that the other worker leaves it a part of the validation
        strike("validating", 1, die if team.rank == lost else lambda: time.sleep(1))
    with may_be_lost():
        trainer = a_trainer(team, form, folder, "rests", layout=layout)
        trainer.fit(1)
        (row,) = trainer.history.epochs
        assert row["samples_per_second"] * row["seconds"] == pytest.approx(1437), row
        (line,) = trainer.history.lost
        assert f"the worker on rank {lost} " in line and " is lost" in line, line
        if team.rank == 0:  # every part of the validation was done
            whole = trainer.dataset.validation.take(slice(None))
            found = trainer.replica.evaluate([whole])
            assert found["samples"] == 360
            assert row["val_accuracy"] == pytest.approx(found["accuracy"], abs=1e-6)
            assert row["val_loss"] == pytest.approx(found["loss"], rel=1e-5)


def stays_away(folder, seed, masters, what):
    """The master gives up only a worker that is stopped for good, at once or later.

    what: "later", "at once", "the job" (all ranks are stopped for a while), "validates" (slowly).
    """
    team, chance = Team(), random.Random(seed)
    # The first task has more time, because ranks load compiled code in it and share few cores.
    hub.FIRST_PATIENCE = 10 if what == "at once" else 60
    hub.PATIENCE, hub.TIMES = (1, 20) if what == "validates" else (4, 1)
    layout = Layout(masters=masters, workers=2 if masters == 1 else 1)
    away = chance.choice([role.rank for role in layout.roles() if role.role == "worker"])
    lost = [away] if what in ("later", "at once") else []
    ranks = team.processes  # (pids of the other ranks)

    def stop(*_):
        if what == "the job":
            time.sleep(0.3)  # meanwhile the others wait for this rank
            pids = " ".join(map(str, [*ranks.values(), os.getpid()]))
            os.system(f"(sleep 6; kill -CONT {pids}) & kill -STOP {pids}")
            time.sleep(1)  # the master wakes up before this rank
        else:
            os.kill(os.getpid(), signal.SIGSTOP)

    def lose(self, leaf, why, right=hub.Master.lose):
        right(self, leaf, why)
        with suppress(ProcessLookupError):
            os.kill(ranks[away], signal.SIGCONT)  # it goes on, and is told

    hub.Master.lose = lose
    if what == "validates":
        strike("validating", 1, lambda: time.sleep(3))
    elif team.rank == away and what == "at once":
        Worker.work = stop
    elif team.rank == away:
        strike("gradient", 20, stop)
    # The worker that is given up learns it during the run, or after it.
    told = lambda error: isinstance(error, GivenUp | PeerError) and team.rank in lost  # noqa: E731
    form = "downpour synchronous" if what == "the job" else "downpour"
    with may_be_lost(told):
        trainer = a_trainer(team, form, folder, "away", layout=layout)
        trainer.fit(EPOCHS)
        check_end(trainer, Path(folder, "away"), lost, 1437, 32)


def run_killed(tmp_path, ranks, form, kills, *more, function="killed", env=None):
    seed = int(time.time())
    call = one_call(ranks, __file__, function, [str(tmp_path), seed, form, *more])
    done = launch.run_ranks(ranks, call, timeout=600, env=env, capture=True, survive=True)
    assert done.returncode == 0, f"{seed}\n{done.stderr}"
    assert "Traceback" not in done.stderr, f"{seed}\n{done.stderr}"
    assert done.stderr.count("is lost") == kills


@pytest.mark.thorough(but="elastic")
@pytest.mark.parametrize("form", (*FORMS, "quorum"))
def test_workers_that_are_killed(tmp_path, form):
    run_killed(tmp_path, 4, form, 2, 2, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS[0::2])  # `make soak` runs all of them
def test_workers_that_are_killed_over_messages(tmp_path, form):
    run_killed(tmp_path, 3, form, 1, 1, 1, env=MESSAGES)


@pytest.mark.thorough(but="elastic")
@pytest.mark.parametrize("form", FORMS[0::2])  # `make soak` runs all of them
def test_all_workers_of_a_sub_master_are_killed(tmp_path, form):
    """The other workers take over its samples."""
    run_killed(tmp_path, 5, form, 1, 1, 2, function="group_killed")


OTHERS = {  # ranks, function, (form, kills, ...), the environment
    "one rank of a worker": (5, "killed", ("downpour", 1, 1, 2), None),
    "workers of two sub-masters": (7, "group_killed", ("downpour", 2, 1, 3), None),
    "the same, synchronous": (7, "group_killed", ("elastic synchronous", 2, 1, 3), None),
    "several of a sub-master": (7, "group_killed", ("downpour", 2, 2, 2), MESSAGES),
    "a group that rests": (5, "rests", ("downpour", 1), None),
    "that rests, synchronous": (5, "rests", ("elastic synchronous", 1), None),
    # The other workers take over its samples, also if it is the only one of its group.
    "stays away at once": (3, "stays_away", (1, 1, "at once"), None),
    "stays away later": (5, "stays_away", (2, 1, "later"), None),
    # Slow ones are not given up.
    "the job is stopped": (3, "stays_away", (1, 0, "the job"), None),
    "validates slowly": (3, "stays_away", (1, 0, "validates"), None),
    "validates slowly in a group": (5, "stays_away", (2, 0, "validates"), None),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("ranks", "function", "how", "env"), OTHERS.values(), ids=OTHERS)
def test_workers_are_lost_or_slow(tmp_path, ranks, function, how, env):
    run_killed(tmp_path, ranks, *how, function=function, env=env)
