"""Notebook 24: folded solutions pass, and the right numbers hold in simulations."""

import numpy as np
import pytest
from exercise_cells import of_exercises, says

from tutorial_dl.course.exercises import check
from tutorial_dl.tuning import simulation
from tutorial_dl.tuning.coordinator import Coordinator
from tutorial_dl.tuning.leader import Leader
from tutorial_dl.tuning.problems import branin
from tutorial_dl.tuning.study import Study

test_solutions, test_open_cells = of_exercises("24", "24.tournament", "24.groups", np=np)


def test_the_right_chance_is_that_of_draws():
    random = np.random.default_rng(0)
    winners = np.array([random.choice(20, 2, replace=False).min() for _ in range(40_000)])
    assert (winners < 10).mean() == pytest.approx(1 - 10 / 20 * 9 / 19, abs=0.01)


class Slow(simulation.SimulatedPort):
    """A port whose clock goes on by 0.3 s with each set that is handed out, as if it chose it."""

    def send(self, cell, message):
        if message["what"] == "train":
            self.time += 0.3
        super().send(cell, message)


@pytest.mark.parametrize(("cells", "busy"), [(8, 1.0), (15, 1.0), (30, 0.5)])
def test_one_coordinator_keeps_a_groups_time_over_its_own_busy(cells, busy):
    """15 for 4.5 s, as 150 for the 45 s of the exercise."""
    space = branin().space
    leaders = [Leader(space, "random", 0, cell) for cell in range(cells)]
    port = Slow(cells, lambda values, fold: values["a"], lambda values, fold, trial: 4.5, leaders)
    study = Study(space, "random", 16 * cells, seed=0)
    outcome = Coordinator(study, port, cells).run()
    assert outcome.utilisation == pytest.approx(busy, rel=0.15)


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("24.tournament", 0.75, "without putting the first one back"),
        ("24.tournament", 10 / 20 * 9 / 19, "both are of the worse half"),
        ("24.tournament", 0.5, "without a tournament"),
        ("24.groups", 14, "how many suggestions fit into one"),
        ("24.groups", 400, "some wait"),
        ("24.groups", 20, "the coordinator could serve more"),
    ],
)
def test_hints(capsys, exercise, answer, hint):
    assert hint in says(capsys, exercise, answer)


def test_either_number_of_groups_is_right():
    assert check("24.groups", 150) and check("24.groups", 151)
