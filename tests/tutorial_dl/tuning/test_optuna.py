"""Trials of a study of Optuna's on groups of ranks."""

import numpy as np
import pytest
from rank_tests import with_ranks

from numba_kernels import launch


def bowl(trial, team):
    """A space that is defined by run; some trials are pruned, and one rank of one fails."""
    import optuna

    from tutorial_dl.training.trainer import reported

    x = trial.suggest_float("x", -4, 4)
    found = (x - 2) ** 2
    if trial.suggest_categorical("more", ["no", "yes"]) == "yes":
        found += trial.suggest_int("n", 1, 3, log=True)
    seen = team.allgather(np.array([x, found])).reshape(team.size, -1)
    assert (seen == seen[0]).all()  # all ranks of the group have the same values
    trial.report(found, 0)
    if trial.number == 3 and team.rank == team.size - 1:
        with reported():  # as in `fit`: all teams of this rank hear of it
            raise OSError("the disk is full")
    team.barrier()
    if trial.number == 5 or (trial.number == 6 and team.rank == 0):
        raise optuna.TrialPruned
    if trial.number == 6:
        return found
    trial.set_user_attr("ranks", team.size)
    assert trial.params["x"] == x and "x" in trial.distributions
    return found


def serial(trial):
    """The same, alone, and without failures."""
    found = (trial.suggest_float("x", -4, 4) - 2) ** 2
    if trial.suggest_categorical("more", ["no", "yes"]) == "yes":
        found += trial.suggest_int("n", 1, 3, log=True)
    return found


@with_ranks(5)
def test_groups_train_the_trials_of_a_study():
    import optuna

    from tutorial_dl import Team
    from tutorial_dl.tuning.optuna import optimize

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    team = Team()
    study = optuna.create_study() if team.rank == 0 else None
    optimize(study, bowl, trials=9, groups=2, team=team)
    if team.rank == 0:
        states = [trial.state.name for trial in study.trials]
        assert states == [
            "FAIL" if i in (3, 6) else "PRUNED" if i == 5 else "COMPLETE" for i in range(9)
        ]
        why = [study.trials[i].user_attrs["why"] for i in (3, 6)]
        assert why[0].endswith("the disk is full") and "TrialPruned must be raised on all" in why[1]
        for trial in study.get_trials(states=[optuna.trial.TrialState.COMPLETE]):
            p = trial.params
            assert trial.value == pytest.approx((p["x"] - 2) ** 2 + p.get("n", 0))
            assert trial.user_attrs["ranks"] == 2 and 0 in trial.intermediate_values
        # One group asks as a single process does, so it gets what Optuna's own loop gets.
        found, alone = (
            optuna.create_study(sampler=optuna.samplers.TPESampler(seed=4)) for _ in range(2)
        )
        alone.optimize(serial, 14)
    optimize(found if team.rank == 0 else None, lambda trial, team: serial(trial), 14, team=team)
    if team.rank == 0:
        assert [one.params for one in found.trials] == [one.params for one in alone.trials]
        assert [one.value for one in found.trials] == [one.value for one in alone.trials]
    with pytest.raises(ValueError, match="the ranks but one a multiple of the groups, got 5 ranks"):
        optimize(None, bowl, trials=2, groups=3, team=team)


ENDS = """
import sys
import numpy as np
import optuna
from tutorial_dl import Team
from tutorial_dl.tuning.optuna import optimize

def objective(trial, own):
    x = trial.suggest_float("x", -4, 4)
    if "of a group" in sys.argv and trial.number == 2 and own.rank == 1:
        sys.exit(3)
    own.allreduce(np.array([x]))
    return x

team = Team()
study = optuna.create_study() if team.rank == 0 else None
if team.rank == 0 and "of the study" in sys.argv:
    study.tell = lambda *_: sys.exit("the storage is gone")
try:
    optimize(study, objective, trials=9, groups=2, team=team)
finally:
    if study is not None:
        print([trial.state.name for trial in study.trials], flush=True)
"""


@pytest.mark.parametrize(
    ("whose", "words"), [("of a group", "'COMPLETE'"), ("of the study", "the study, has failed")]
)
def test_a_rank_that_ends(whose, words):
    """Its process waits in MPI_Finalize for the others, which must not wait for it."""
    done = launch.run_ranks(5, ["-c", ENDS, whose], timeout=60, capture=True)
    assert done.returncode and words in done.stdout + done.stderr
    if whose == "of a group":
        assert done.stdout.count("'FAIL'") == 1 and done.stdout.count("'COMPLETE'") == 8
