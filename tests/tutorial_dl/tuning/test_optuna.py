"""Trials of a study of Optuna's on groups of ranks."""

import numpy as np
import pytest
from rank_tests import with_ranks


def bowl(trial, team):
    """A space that is defined by run; some trials are pruned, and one rank of one fails."""
    import optuna

    x = trial.suggest_float("x", -4, 4)
    found = (x - 2) ** 2
    if trial.suggest_categorical("more", ["no", "yes"]) == "yes":
        found += trial.suggest_int("n", 1, 3, log=True)
    seen = team.allgather(np.array([x, found])).reshape(team.size, -1)
    assert (seen == seen[0]).all()  # all ranks of the group have the same values
    trial.report(found, 0)
    if trial.number == 3 and team.rank == team.size - 1:
        raise OSError("the disk is full")
    team.barrier()
    if trial.number == 5:
        raise optuna.TrialPruned
    trial.set_user_attr("ranks", team.size)
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
            "FAIL" if i == 3 else "PRUNED" if i == 5 else "COMPLETE" for i in range(9)
        ]
        assert study.trials[3].user_attrs["why"].endswith("the disk is full")
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
