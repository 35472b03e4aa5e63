"""Figures of staleness, elastic averaging and energy matching show the data they are given."""

from __future__ import annotations

import numpy as np
from drawn import legend, points, row_names

from tutorial_dl.course import plotting

# Staleness -------------------------------------------------------------------------------------

RATES = np.array([0.1, 0.2, 0.3])
GROWTH = np.array([[0.9, 0.8, 0.7], [0.9, 1.0, 1.2]])


def test_a_map_has_the_growth_the_bound_and_the_runs():
    runs = [(0.1, 0, True), (0.3, 1, False), (0.2, 0, True)]
    ax = plotting.delay_map(RATES, GROWTH, np.array([0.4, 0.2]), runs).axes[0]
    (picture,) = ax.get_images()
    assert (picture.get_array() == GROWTH).all()
    # The centers of the outer cells are at the outer rates and delays.
    assert np.allclose(picture.get_extent(), [0.05, 0.35, -0.5, 1.5])
    assert picture.origin == "lower" and (picture.norm.vmin + picture.norm.vmax) / 2 == 1
    assert points(ax, "bound, predicted") == [[0.4, 0.4, 0.2, 0.2], [-0.5, 0.5, 0.5, 1.5]]
    assert points(ax, "run: converged") == [[0.1, 0.2], [0, 0]]
    assert points(ax, "run: diverged") == [[0.3], [1]]


def test_a_histogram_has_shares_the_mean_and_what_is_beyond_it():
    updates = {2: 6, 0: 3, 90: 1}
    (ax,) = plotting.staleness_histogram(updates, {"in turn": np.array([0, 0, 1.0, 0])}).axes
    bars = {patch.get_x() + patch.get_width() / 2: patch.get_height() for patch in ax.patches}
    assert bars == {0: 0.3, 2: 0.6}
    assert "measured, mean 10.20\n(1 of 10 beyond 3)" in legend(ax)  # (12 + 90) / 10
    assert points(ax, "in turn") == [[0, 1, 2, 3], [0, 0, 1, 0]]
    assert ax.get_xlim() == (-0.6, 3.6)
    (ax,) = plotting.staleness_histogram(updates, {}).axes
    assert "measured, mean 10.20" in legend(ax) and ax.get_xlim()[1] > 90


# Elastic averaging -----------------------------------------------------------------------------


def test_springs_have_a_path_a_worker_and_end_where_they_do():
    x = np.array([[[0.0, 0], [0, 0]], [[1, 2], [3, 4]]])  # (t, p, 2)
    center = np.array([[0.0, 0], [2, 3]])
    rests = {"tied": (np.array([[1.5, 2], [3, 4.5]]), np.array([2.0, 3]))}
    figure = plotting.springs({"alone": (x, center), "tied": (x, center)}, [1, 6], rests, x[1])
    alone, tied = figure.axes
    assert points(alone, "worker 1") == points(tied, "worker 1") == [[3], [4]]
    assert points(tied, "center") == [[2], [3]]
    assert points(tied, "predicted") == [[1.5, 3, 2], [2, 4.5, 3]]
    springs = {  # dotted, from worker to center, and only where there are springs
        ax.get_title("left"): [
            np.transpose(of.get_data()).tolist()
            for of in ax.get_lines()
            if of.get_linestyle() == ":"
        ]
        for ax in (alone, tied)
    }
    assert springs == {"alone": [], "tied": [[[1, 2], [2, 3]], [[3, 4], [2, 3]]]}
    assert legend(tied) == [
        "worker 0", "worker 1", "center", "predicted", "minimum of its data",
    ]  # fmt: skip


# Energy matching -------------------------------------------------------------------------------


def test_commits_have_x_above_and_pi_below():
    runs = {
        "one": (np.array([1, 0.9, 0.8]), np.array([1, 0.5]), [0, 0]),
        "two": (np.array([1, 0.9, 0.9]), np.array([1.0, 0]), [0, 1]),
    }
    one, two, below_one, below_two = plotting.commits(runs).axes
    assert [ax.get_title("left") for ax in (one, two)] == ["one", "two"]
    assert list(two.get_lines()[0].get_ydata()) == [1, 0.9, 0.9]
    assert points(below_two, "worker 0") == [[1], [1]] and points(below_two, "worker 1") == [
        [2],
        [0],
    ]
    assert [of.get_ydata()[0] for of in below_one.get_lines()] == [1, 0.5]
    assert below_one.get_legend() is None and legend(below_two) == ["worker 0", "worker 1"]


def test_shares_of_pi_fill_the_bar():
    (ax,) = plotting.shares_of_pi([1, 16], [0.2, 0.6], [0.3, 0.1]).axes
    parts = {of.get_label(): [(p.get_x(), p.get_width()) for p in of] for of in ax.containers}
    assert np.allclose(parts["π = 0: nothing left to do"], [(0, 0.2), (0, 0.6)])
    assert np.allclose(parts["between"], [(0.2, 0.5), (0.6, 0.3)])
    assert np.allclose(parts["π at its maximum"], [(0.7, 0.3), (0.9, 0.1)])
    assert row_names(ax) == ["1", "16"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # one worker on top


# All -------------------------------------------------------------------------------------------
