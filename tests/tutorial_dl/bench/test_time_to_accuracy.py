"""`bench time-to-accuracy`: what is counted, and the table; its seconds are not tested."""

import math

import pytest

from tutorial_dl import bench
from tutorial_dl.bench import time_to_accuracy as race
from tutorial_dl.config import RunConfig


def test_a_run_that_did_not_arrive_took_for_ever():
    assert race.quarters([3.0, 1.0, None, 2.0, None]).tolist() == [2, 3, math.inf]


def test_the_table_is_sorted_and_compares_with_tuned_adam():
    rows = [
        {"task": "a", "target": "val_loss=1", "entry": entry, "options": {"batch_size": 8},
         "ranks": 2, "epochs": epochs, "seconds": seconds}
        for entry, epochs, seconds in (
            ("adam", [3, 4, 5], [6.0, 8.0, 10.0]),
            ("late", [None, 9, None], [None, 18.0, None]),
            ("early", [2, 1, 3], [4.0, 2.0, 6.0]),
        )
    ]  # fmt: skip
    text = race.table({"machine": "M", "load": 0.1, "commit": "abc", "rows": rows})
    assert text.splitlines()[0] == "M, load 0.1 before, commit abc"
    assert text.splitlines()[-3:] == [
        "| early | batch_size=8 | 3 of 3 | 2 | 4.00 (2.00 to 6.00) | 2.00 |",
        "| adam | batch_size=8 | 3 of 3 | 4 | 8.00 (6.00 to 10.00) | 1.00 |",
        "| late | batch_size=8 | 1 of 3 | inf | inf (18.00 to inf) | 0.00 |",
    ]


def test_entries_are_options_of_train():
    for task in race.TASKS.values():
        assert race.BASE in task.entries
        for options in task.entries.values():
            RunConfig.of(model=task.model, target=task.target, **options).check()


def count(path):
    """What two ranks count, beside what `fit` of the same training does."""
    import json

    from numba_kernels import Team
    from tutorial_dl import data
    from tutorial_dl.training.setup import prepare

    far = race.Task("softmax", "digits", "val_accuracy=0.9", 6, {
        "adam": {"optimizer": "adam", "learning_rate": 0.01},
        "never": {"optimizer": "sgd", "learning_rate": 1e-9},
    })  # fmt: skip
    rows, team = race.rows_of("softmax", far, [0, 1]), Team()
    given = {"model": "softmax", "data": "digits", "epochs": 6, "seed": 1, "quiet": True}
    config = RunConfig.of(**given, **far.entries["adam"])
    scores = prepare(config, team, None, data.load("digits")).fit(6).epochs
    first = next(i for i, row in enumerate(scores, 1) if row["val_accuracy"] >= 0.9)
    if team.rank == 0:
        with open(path, "w") as file:
            json.dump([rows, first], file)


def test_what_is_counted(on_ranks, tmp_path):
    import json

    on_ranks(2, count, str(tmp_path / "rows.json"))
    (adam, never), first = json.loads((tmp_path / "rows.json").read_text())
    assert adam["epochs"][1] == first and adam["ranks"] == 2
    assert all(0 < one < 60 for one in adam["seconds"])
    assert never["epochs"] == never["seconds"] == [None, None]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((2, 5.0, None, [bench.RACE]), "--seconds has no effect on bench time-to-accuracy"),
        ((2, None, None, ["zebra"]), "bench measures networks or time-to-accuracy"),
        ((2, None, "/nowhere/a.json", [bench.RACE]), "there is no folder /nowhere"),
    ],
)
def test_what_can_not_be_asked(given, words):
    with pytest.raises(ValueError, match=words):
        bench.main(*given)
