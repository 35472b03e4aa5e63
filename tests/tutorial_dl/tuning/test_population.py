"""Population based training: what is copied and changed, and by whom."""

from itertools import pairwise

import numpy as np
import pytest
from rank_tests import with_ranks

SPACE = {
    "learning_rate": {"type": "float", "low": 1e-9, "high": 0.5, "log": True},
    "momentum": {"type": "float", "low": 0.5, "high": 0.9},
}


def search_of(**options):
    from tutorial_dl.config import RunConfig
    from tutorial_dl.tuning import Search, Space

    given = {"optimizer": "momentum", "model": "softmax", "data": "digits", "epochs": 4}
    base = RunConfig.of(**given | options.pop("base", {}))
    options = {"sampler": "random", "groups": 4, "population": 1} | options
    return Search(Space.of(options.pop("space", SPACE)), base, **options)


@with_ranks(5)
def test_a_population():
    from tutorial_dl import Team
    from tutorial_dl.tuning.running import run

    team, said = Team(), []
    search = search_of(base={"seed": 3})
    found = run(search, team, lambda text, row: said.append(text))
    if team.rank:
        assert found is None and not said
        return
    study, outcome = found
    rows = study.rows()
    assert len(rows) == 4 and len(said) == 4 and outcome.cells == 4 and len(outcome.spans) == 16
    assert 0 < outcome.utilisation <= 1
    figures = [list(map(float, line.split(": ")[1].split(", "))) for line in said]
    copies = 0
    for row in rows:
        assert row["state"] == "complete" and row["value"] == pytest.approx(
            figures[3][row["number"]], rel=1e-3
        )
        path = row["schedule"]
        assert path[0]["epoch"] == 0
        for before, now in pairwise(path):
            copies += 1
            # It has copied the best of four, and its values are theirs times 0.8 or 1.2
            assert now["from"] == int(np.argmin(figures[now["epoch"] - 1]))
            for name in SPACE:
                low, high = SPACE[name]["low"], SPACE[name]["high"]
                may = [min(max(before[name] * factor, low), high) for factor in (0.8, 1.2)]
                assert now[name] == pytest.approx(may[0]) or now[name] == pytest.approx(may[1])
    assert copies >= 1
    # One that copies the best at the end of an epoch, at nearly the same rate, ends near it; alone,
    # a rate of 1e-9 would have stayed at log(10).
    assert max(row["value"] for row in rows) < 2.3


@with_ranks(5)
def test_members_that_diverge_copy_others():
    from tutorial_dl import Team
    from tutorial_dl.tuning.running import run

    team, said = Team(), []
    rate = {"type": "float", "low": 1e-3, "high": 1e90, "log": True}
    search = search_of(base={"seed": 1, "ema": 0.9}, space={"learning_rate": rate})
    found = run(search, team, lambda text, row: said.append(text))
    if found is not None:
        assert "nan" in said[0] and "nan" not in said[3]
        assert {row["state"] for row in found[0].rows()} == {"complete"}
    team.barrier()  # it can be used again


@with_ranks(2, keras=True)
def test_a_member_copies_all_that_training_depends_on():
    """Also one that has failed, and parts of models."""
    from tutorial_dl import Team
    from tutorial_dl.tuning.population import Member

    team = Team()
    average, parts = {"ema": 0.9}, {"model": "mlp", "shard": 2}
    for base, rate in (({}, 0.01), (average, 0.01), (average, 1e39), (parts, 0.01)):
        sets = [{"learning_rate": 0.1, "momentum": 0.9}, {"learning_rate": rate, "momentum": 0.6}]
        member = Member(search_of(base=base), team.split(team.rank), sets[team.rank])
        figure = member.train(1)
        team.recover(60)
        assert np.isfinite(figure) == (team.rank == 0 or rate < 1)
        if team.rank == 0:
            member.give(team, 1)
        else:
            member.take(team, 0)
            member.use(sets[0])
        rule = member.strategy.optimizer
        assert rule.learning_rate == 0.1 and getattr(rule, "inner", rule).momentum == 0.9
        if rate < 1:
            member.train(1)  # of the same samples in the same order
        member.strategy.show(False)
        vectors = [member.trainer.replica.parameters]
        for vector in vectors + [one.slots.ravel() for one in member.strategy.states]:
            rows = team.allgather(vector).reshape(2, -1)
            np.testing.assert_array_equal(*rows, err_msg=f"{base} {rate}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"space": {"batch_size": {"type": "int", "low": 1, "high": 9}}}, "got batch_size"),
        ({"base": {"schedule": "cosine"}}, "--population finds a schedule"),
        ({"base": {"batch_rule": "linear"}}, "--population finds a schedule"),
        ({"base": {"patience": 2}}, "leave --patience and --target out"),
        ({"folds": 2}, "leave --folds"),
        ({"groups": 1}, "--groups of at least 2, got 1"),
        ({"trials": 8}, "--trials has no effect with --population"),
        ({"deadline": 9.0}, "--deadline has no effect with --population"),
    ],
)
def test_what_does_not_fit(options, words):
    with pytest.raises(ValueError, match=words):
        search_of(**options).check(1)
