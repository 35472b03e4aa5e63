"""Choosing how a model is computed: all ranks alike, as measured, and as a checkpoint says."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from rank_tests import with_ranks

from tutorial_dl import Team, Trainer, replica
from tutorial_dl.runtime import compilation

pytestmark = pytest.mark.xdist_group("keras")


def trainer_of(team, times, drops=0.3, **options):
    """A Trainer of a small network whose ranks "measure" these times, in seconds per batch."""
    import keras

    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dropout(drops), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile("sgd", "mse")
    mine, asked = replica.of(model), []

    def seconds_by(what, how, batch, once=False):
        if not once:
            asked.append((what, how, len(batch[0])))
        return times[what][how][team.rank]

    mine.compilation.seconds = seconds_by
    x = np.random.default_rng(2).random((64, 3), np.float32)
    data = (x[:52], x[:52, :2]), (x[52:], x[52:, :2])
    return Trainer(mine, data, team=team, batch_size=16, progress=False, **options), asked


@pytest.mark.thorough
@with_ranks(2, keras=True)
def test_all_ranks_choose_alike_and_a_resumed_run_goes_on_so(folder):
    with mock.patch.object(compilation, "CALLS", 1):
        chooses_in_few_calls(folder)


def chooses_in_few_calls(folder):
    team = Team()
    slowly, quick, slow, never = [5.0, 9.0], [1.0, 8.0], [1.0, 9.0], [1.0, None]
    times = {
        "gradient": {"graph": slowly, "xla": quick},
        "evaluation": {"graph": slowly, "xla": slow},
    }
    # 4 batches of 8 samples per rank, and 6 samples to evaluate; the slowest rank decides.
    one, asked = trainer_of(team, times, checkpoint=Path(folder, "a"))
    one.fit(1)
    assert one.replica.compilation.chosen == {"gradient": "xla", "evaluation": "graph"}
    graph, xla = ("evaluation", "graph", 6), ("evaluation", "xla", 6)
    assert asked == [("gradient", "graph", 8), ("gradient", "xla", 8)], asked
    one.fit(2)  # long enough for evaluation, too
    assert asked[2:] == [graph, xla], asked
    again, asked = trainer_of(team, {}, checkpoint=Path(folder, "a"))
    again.resume()
    again.fit_to(4)
    assert again.replica.compilation.chosen == one.replica.compilation.chosen and not asked
    one.fit(1)
    assert (again.replica.parameters == one.replica.parameters).all(), "not the same bits"
    # A rank that can't, a run that is too short, and what a user asks for
    times["gradient"] = {"graph": [5.0, 9.0], "xla": never}
    other, _ = trainer_of(team, times)
    other.fit(1)
    assert other.replica.compilation.chosen["gradient"] == "graph"
    times["gradient"] = {"graph": [0.1, 0.2], "xla": [0.0, 0.0]}
    short, asked = trainer_of(team, times)
    short.fit(1)
    assert short.replica.compilation.chosen["gradient"] == "graph" and not asked
    with mock.patch.object(compilation, "CALLS", 5):
        short, asked = trainer_of(team, {})  # measures nothing at all
        short.fit(1)
    told, asked = trainer_of(team, times, drops=0.0, compile="xla")
    told.fit(1)
    assert told.replica.compilation.chosen == {"gradient": "xla", "evaluation": "xla"} and not asked
    plain, _ = trainer_of(team, times, drops=0.0, compile="graph")
    plain.fit(1)
    ours, theirs = told.history.last["loss"], plain.history.last["loss"]
    assert ours == pytest.approx(theirs, rel=1e-5)


@with_ranks(3, keras=True)
def test_workers_of_a_master_choose_alike():
    team = Team()
    graph, quick = [9.0] * 3, [1.0] * 3
    times = {key: {"graph": graph, "xla": quick} for key in ("gradient", "evaluation")}
    one, asked = trainer_of(team, times, strategy="downpour")
    with mock.patch.object(compilation, "CALLS", 1):
        one.fit(1)
        assert (
            one.replica.compilation.chosen["gradient"] == "xla" and ("gradient", "xla", 16) in asked
        )
        one.fit(1)
