"""Figures of searches, games and showers show the data that they are given."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import column_names, row_names

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
    assert column_names(below) == ["0.1", "1", "10"]


def test_the_figures_of_showers():
    voxels = np.zeros((4, 3, 3))
    voxels[1, 2] = 1.0  # GeV, in each of three
    image = plotting.shower_pictures({"one": voxels}).axes[0].images[0].get_array()
    assert image.shape == (3, 4) and image[2, 1] == 3 and image.mask.sum() == 11
    ax = plotting.layer_profiles({"a": [1.0, 2.0], "b": [1.5, 2.5]}).axes[0]
    assert [bar.get_height() for bar in ax.patches] == [1.0, 2.0]
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1.5, 2.5])
    rows = {"floor": {"x": 0.01, "y": 0.02}, "ceiling": {"x": 1.0, "y": 0.9}}
    ax = plotting.separations_by_feature(rows).axes[0]
    names = row_names(ax)
    places = dict(zip(names, ax.get_yticks(), strict=True))
    for line, of in zip(ax.lines, rows.values(), strict=True):
        found = dict(zip(line.get_ydata(), line.get_xdata(), strict=True))
        assert {name: found[places[name]] for name in of} == of
    of = {"a": np.linspace(0, 1, 50), "b": np.linspace(5, 6, 50)}  # b lies outside: the last bin
    panel = plotting.shower_histograms({"width": of}).axes[0]
    assert sum(bar.get_height() for bar in panel.patches[:30]) == pytest.approx(1)
