"""Notebook 26: folded solutions pass, and the right answers are those of layouts and searches."""

import numpy as np
import pytest
from exercise_cells import of_exercises, says

from tutorial_dl.course.exercises import check, notebook_26
from tutorial_dl.layout import Layout
from tutorial_dl.tuning.coordinator import Coordinator
from tutorial_dl.tuning.leader import Leader
from tutorial_dl.tuning.problems import branin
from tutorial_dl.tuning.simulation import SimulatedPort
from tutorial_dl.tuning.study import Study

test_solutions, test_open_cells = of_exercises("26", "26.ranks", "26.finished", np=np)


def test_the_right_number_is_that_of_the_layout():
    assert check("26.ranks", Layout(groups=4, folds=5, masters=2, workers=2, devices=2).ranks)


@pytest.mark.parametrize("groups", [2, 3, 7])
def test_the_coordinator_ends_when_the_exercise_says(groups):
    """On a simulated clock, with times that have nothing to do with the values."""
    times = np.random.default_rng(groups).uniform(1, 10, 25)
    space = branin().space
    leaders = [Leader(space, "random", 0, group) for group in range(groups)]
    port = SimulatedPort(
        groups, lambda values, fold: 0.0, lambda values, fold, n: times[n], leaders
    )
    outcome = Coordinator(Study(space, "random", 25, seed=0), port, groups).run()
    assert outcome.seconds == pytest.approx(notebook_26._end(times, groups))


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("26.ranks", 220, "who coordinates?"),
        ("26.ranks", 181, "the sub-masters are ranks, too"),
        ("26.ranks", 201, "the top master of each training"),
        ("26.ranks", 161, "this counts the ranks that compute"),
        ("26.ranks", 45, "each fold has a training of its own"),
        ("26.ranks", 56, "each group has all folds"),
        ("26.ranks", 240, "one coordinator for the whole search"),
        ("26.finished", lambda times, groups: sum(times) / groups, "always in use"),
        ("26.finished", lambda times, groups: max(times), "may begin late"),
        ("26.finished", lambda times, groups: sum(times), "one group alone"),
        ("26.finished", lambda times, groups: max(sum(times[g::groups]) for g in range(groups)),
         "should ask when it is free"),
        ("26.finished", lambda times, groups: sum(
            max(times[i : i + groups]) for i in range(0, len(times), groups)),
         "slowest of each round"),
    ],
)  # fmt: skip
def test_hints(capsys, exercise, answer, hint):
    assert hint in says(capsys, exercise, answer)
