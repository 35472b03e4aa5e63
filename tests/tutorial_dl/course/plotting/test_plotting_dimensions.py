"""Figures of cuts show what they are given: parts as bars, cuts as points, limits as lines."""

import numpy as np
from matplotlib.container import BarContainer

from tutorial_dl.course import plotting

PARTS = {
    "data 2": {"computing": 3.0, "bubble": 0.0, "data": 2.0, "tensor": 0.0},
    "tensor 2": {"computing": 3.0, "bubble": 0.0, "data": 0.0, "tensor": 1.0},
}


def test_bars_end_at_the_sum_of_their_parts():
    ax = plotting.parts_of_cuts(PARTS, "s", "Two cuts", [5.5, 4.5], (6.0, "limit")).axes[0]
    bars = {b.get_label(): b for b in ax.containers if isinstance(b, BarContainer)}
    assert list(bars) == ["computing", "data", "tensor"]  # no cut has a bubble
    ends = [bar.get_x() + bar.get_width() for bar in bars["tensor"]]
    assert ends == [5.0, 4.0]
    points, line = ax.get_lines()
    assert list(points.get_xdata()) == [5.5, 4.5] and list(line.get_xdata()) == [6.0, 6.0]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == list(PARTS)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first is at the top
    assert ax.get_xlim()[1] > 6


def test_cuts_are_points_and_named_ones_have_their_names():
    memory, seconds = [10.0, 100.0, 40.0], [8.0, 7.0, 30.0]
    figure = plotting.map_of_cuts(memory, seconds, [2, 2, 8], 80, {"best": 0, "slow": 2})
    ax = figure.axes[0]
    shown = {line.get_label(): np.column_stack(line.get_data()).tolist() for line in ax.get_lines()}
    assert shown["tensor 2"] == [[10, 8], [100, 7]] and shown["tensor 8"] == [[40, 30]]
    assert any(list(line.get_xdata()) == [80, 80] for line in ax.get_lines())
    names = {text.get_text(): getattr(text, "xy", None) for text in ax.texts}
    assert names["best"] == (10, 8) and names["slow"] == (40, 30)
    assert "over 80 GB" in names
