"""Figures of a search show the data that they are given."""

from __future__ import annotations

import numpy as np

from tutorial_dl.course import plotting


def test_a_grid_shows_fewer_values_than_random_draws():
    grid = np.array([(x, y) for x in (0, 0.5, 1) for y in (0, 0.5, 1)])
    drawn = np.random.default_rng(0).random((9, 2))
    figure = plotting.grid_and_random({"grid": grid, "random": drawn}, lambda x: x**2)
    above, below = figure.axes[:2], figure.axes[2:]
    assert [ax.get_title("left") or ax.get_title() for ax in above] == [
        "grid: 3 different values",
        "random: 9 different values",
    ]
    assert (below[1].lines[0].get_xydata() == drawn).all()
    assert (above[1].lines[1].get_ydata() == drawn[:, 0] ** 2).all()


def test_steps_show_mean_points_and_where_the_next_training_is():
    grid = np.linspace(-4, 0, 5)
    steps = [
        {"grid": grid, "mean": grid + n, "deviation": 0 * grid + 0.5, "improvement": grid**2,
         "x": grid[:n], "y": grid[:n] + 1, "next": -1.0 * n}
        for n in (2, 3)
    ]  # fmt: skip
    figure = plotting.process_steps(steps, "rate", "loss")
    above, below = figure.axes[:2], figure.axes[2:]
    for n, top, bottom in zip((2, 3), above, below, strict=True):
        mean, points, following = top.lines
        assert (mean.get_ydata() == grid + n).all() and len(points.get_xdata()) == n
        assert list(following.get_xdata()) == [-n, -n]
        assert (bottom.lines[0].get_ydata() == grid**2).all()
        assert f"{n} trainings" in (top.get_title("left"), top.get_title())


def test_chances_and_single_trainings():
    figure = plotting.chances([1, 2], np.array([0.1, 0.2]), [0.11, 0.19])
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[0.1, 0.2], [0.11, 0.19]]
    figure = plotting.regrets({"a": ([1, 2], [0.5, 0.0])}, "seconds")
    assert list(figure.axes[0].lines[0].get_ydata()) == [0.5, 1e-9]
    figure = plotting.measured_once(np.arange(3), np.arange(3) ** 2, "x", "y")
    assert list(figure.axes[0].lines[0].get_ydata()) == [0, 1, 4]


def test_estimates_are_points_beside_their_predicted_deviation():
    errors = {"one": np.array([[0.1, -0.1], [0.0, 0.2]]), "mean": np.array([0.01, -0.02])}
    ax = plotting.estimates(errors, {"one": 0.1, "mean": 0.02}).axes[0]
    assert [sorted(line.get_xdata()) for line in ax.lines[:2]] == [
        [-0.1, 0.0, 0.1, 0.2],
        [-0.02, 0.01],
    ]
    sides = [bar.get_segments()[0][0, 0] for bar in ax.collections]
    assert sides == [-0.1, 0.1, -0.02, 0.02]


def test_winners_are_shares_of_choices():
    chosen = {"one": np.array([0, 1, 1, 2]), "mean": np.array([1, 1, 1, 1])}
    above, below = plotting.winners([0.1, 1, 10], chosen, [0.5, 0.9, 0.7], "rate").axes
    assert list(above.lines[0].get_ydata()) == [0.5, 0.9, 0.7]
    assert [bar.get_height() for bar in below.patches] == [0.25, 0.5, 0.25, 0, 1, 0]
    assert [label.get_text() for label in below.get_xticklabels()] == ["0.1", "1", "10"]
