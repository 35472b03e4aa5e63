"""Figures of ranks that fail show the data they are given."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.course.plotting.messages import circle


def arrows(ax):
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


@pytest.mark.parametrize(
    ("waits", "caught"),
    [
        ({0: 1, 1: 2, 2: 0}, {0, 1, 2}),
        ({0: 1, 1: 0, 2: 0}, {0, 1}),  # rank 2 waits for a rank of the circle, and is not in it
        ({2: 0, 0: 1, 1: 0}, {0, 1}),
        ({1: 2, 2: 0}, set()),
        ({}, set()),
    ],
)
def test_a_circle_is_found_and_red(waits, caught):
    assert circle(waits) == caught
    figure = plotting.who_waits([("title", waits)], 3)
    red = [to_hex(arrow.get_edgecolor()).upper() == style.RED for arrow in arrows(figure.axes[0])]
    assert len(red) == len(waits) and sum(red) == len(caught)


@pytest.mark.parametrize("waits", [{0: 3}, {3: 0}, {1: 1}, {-1: 0}])
def test_ranks_that_do_not_exist_are_refused(waits):
    with pytest.raises(ValueError, match="both must be ranks from 0 to 2, and different"):
        plotting.who_waits([("title", waits)], 3)


def test_all_four_ways_to_miss_a_meeting():
    titles = [ax.get_title(loc="left") for ax in plotting.ways_to_miss().axes]
    assert [re.match(r"\w+", title)[0] for title in titles] == [
        "all", "crash", "mismatch", "deadlock", "straggler",
    ]  # fmt: skip


def test_a_training_with_faults_shows_every_stretch_where_it_was():
    figure = plotting.with_faults([4, 3, 2, 1], [(1, [4, 3]), (3, [1.9])], {2.5: "it fell"})
    whole, first, second, fault = figure.axes[0].lines
    assert list(whole.get_xdata()) == [1, 2, 3, 4]
    assert list(first.get_xdata()) == [1, 2] and list(first.get_ydata()) == [4, 3]
    assert list(second.get_xdata()) == [3] and list(second.get_ydata()) == [1.9]
    assert list(fault.get_xdata()) == [2.5, 2.5]
    assert "it fell" in [text.get_text() for text in figure.axes[0].texts]


def test_the_slowest_is_shown_in_milliseconds():
    figure = plotting.slowest_of([1, 2], [0.01, 0.02], {1: 0.011}, mean=0.01)
    predicted, measured, mean = figure.axes[0].lines
    assert np.allclose(predicted.get_ydata(), [10, 20])
    assert np.allclose(measured.get_ydata(), [11]) and np.allclose(mean.get_ydata(), [10, 10])


def test_how_long_stands_beside_by_when():
    ax = plotting.how_long([("crash", 2, 0.5), ("circle", 8, 7)]).axes[0]
    assert [bar.get_width() for bar in ax.patches] == [2, 8]
    assert [line.get_xdata()[0] for line in ax.lines] == [0.5, 7]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["crash", "circle"]


def test_every_figure_can_be_drawn():
    for figure in (
        plotting.ways_to_miss(),
        plotting.who_waits([("one", {0: 1}), ("two", {})], 2),
        plotting.with_faults([2, 1], [(1, [2, 1])], {}),
        plotting.slowest_of([1, 2], [1, 2], {}, mean=1),
        plotting.how_long([("crash", 2, 0.5)]),
    ):
        assert figure._repr_png_().startswith(b"\x89PNG")
