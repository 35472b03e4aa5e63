"""Figures of ranks, their messages and their failures show the data they are given."""

from __future__ import annotations

import re

import numpy as np
import pytest
from drawn import texts
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.course.plotting.messages import circle


def test_the_figure_of_message_times():
    sizes = 2 ** np.arange(3, 23)
    alpha, beta = 2e-6, 1 / 10e9  # half of the bandwidth is reached at 20,000 bytes
    figure = plotting.message_times(sizes, alpha + sizes * beta, {"model": (alpha, beta)})
    assert texts(figure.axes[1]) == [f"n½ = {20000 / 1024:.3g} KiB"]
    measured, predicted, _ = figure.axes[0].lines
    # The measured points must lie on the predicted line: both in µs over bytes.
    assert np.allclose(
        np.interp(np.log(sizes), np.log(predicted.get_xdata()), predicted.get_ydata()),
        measured.get_ydata(),
        rtol=1e-3,
    )
    assert measured.get_ydata()[0] == pytest.approx(2.0008)  # µs


def test_the_figure_of_ranks():
    figure = plotting.ranks(["a", "b", "c"], messages=[(0, 1), (2, 0)])
    assert texts(figure.axes[0]) == ["rank 0", "a", "rank 1", "b", "rank 2", "c", "1", "2"]
    arrows = [p for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)]
    assert [(round(a._posA_posB[0][0]), round(a._posA_posB[1][0])) for a in arrows] == [
        (0, 1),
        (2, 0),
    ]


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
    assert "it fell" in texts(figure.axes[0])
