"""Figures of large batches and of batch normalisation show the data they are given."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import column_names, legend, line, row_names, texts

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.course.plotting import batches

BATCHES = [32, 64, 128]
RUNS = {
    "same rate": [[0.98, 0.96], [0.95, 0.95], [0.90, 0.80]],
    "linear rule": [[0.98, 0.96], [0.98, 1.0], [0.1, 0.1]],
}
ROWS = [("Goyal", {"steps": 14000.0, "rate": 32e3}), ("Ying", {"steps": 3500.0, "rate": 870e3})]


def test_errors_have_the_mean_and_the_range_of_the_seeds():
    (ax,) = plotting.batch_errors(BATCHES, RUNS, title="message").axes
    same, linear = ax.containers
    assert np.allclose(same.lines[0].get_ydata(), [3, 5, 15])
    assert np.allclose(linear.lines[0].get_ydata(), [3, 1, 90])
    ends = np.array([bar[:, 1] for bar in same.lines[2][0].get_segments()])
    assert np.allclose(ends, [[2, 4], [5, 5], [10, 20]])
    # 0% is not on a logarithmic axis, so it is drawn at the floor.
    ends = np.array([bar[:, 1] for bar in linear.lines[2][0].get_segments()])
    assert np.allclose(ends, [[2, 4], [batches.FLOOR, 2], [90, 90]])
    # Markers stand side by side, and never nearer to another batch.
    x = np.array([of.lines[0].get_xdata() for of in (same, linear)])
    assert (x[0] < x[1]).all() and np.abs(np.log2(x / BATCHES)).max() < 0.25
    assert ax.get_title("left") == "message" and ax.get_yscale() == "log"
    entries = legend(ax)
    assert entries == ["same rate", "linear rule"]


def test_a_limit_has_the_colour_of_its_rule():
    limits = {"linear rule": 90.0, "memory": 120.0}
    (ax,) = plotting.batch_errors(BATCHES, RUNS, limits=limits).axes
    upright = {
        drawn.get_xdata()[0]: drawn.get_color()
        for drawn in ax.get_lines()
        if len(drawn.get_xdata()) == 2
    }
    assert upright == {90.0: style.COLOURS[1], 120.0: style.COLOURS[1]}
    assert texts(ax) == ["its limit,\npredicted", "memory"]


def test_ranks_are_counted_above():
    (ax,) = plotting.batch_errors(BATCHES, RUNS, per_rank=32).axes
    (upper,) = ax.child_axes
    assert column_names(upper) == ["1", "2", "4"]
    assert upper.get_xlabel() == "ranks of 32 samples each"
    assert plotting.batch_errors(BATCHES, RUNS).axes[0].child_axes == []


def test_stable_rates_have_a_line_a_seed_and_a_level_for_each_rate():
    limits = np.array([[1.0, 0.3, 0.6], [1.2, 0.4, 0.5]])
    (ax,) = plotting.stable_rates([1, 45, 900], limits, {"batch 512": 0.32, "other": 0.16}).axes
    drawn = [of for of in ax.get_lines() if len(of.get_xdata()) == 3]
    assert [of.get_ydata().tolist() for of in drawn] == limits.tolist()
    assert all(of.get_xdata().tolist() == [1, 45, 900] for of in drawn)
    levels = [of.get_ydata()[0] for of in ax.get_lines() if len(of.get_xdata()) == 2]
    assert levels == [0.32, 0.16]
    assert texts(ax) == ["batch 512: 0.32", "other: 0.16"]
    assert len(ax.get_legend().get_texts()) == 1
    assert ax.get_ylim()[0] < 0.16 and ax.get_ylim()[1] > 1.2


def test_records_are_rows_from_top_to_bottom():
    steps, rate = plotting.records(ROWS).axes
    assert steps.get_xlabel() == "steps" and rate.get_xlabel() == "rate"
    assert line(steps, "_child0").tolist() == [[14000, 3500], [0, 1]]
    assert line(rate, "_child0").tolist() == [[32e3, 870e3], [0, 1]]
    assert texts(rate) == ["32,000", "870,000"]
    assert row_names(steps) == ["Goyal", "Ying"]
    assert steps.get_ylim()[0] > steps.get_ylim()[1]
    for ax in (steps, rate):
        assert ax.get_xscale() == "log" and ax.get_xlim()[1] > 2 * max(line(ax, "_child0")[0])


def test_a_sample_becomes_what_each_ranks_mean_and_deviation_make_of_it():
    """Mean, deviation: (0, 2): 1 and 1; (1, 5, 9): 5 and sqrt(32/3); all: 3.4 and sqrt(10.64)."""
    left, right = plotting.normalised_apart([[0.0, 2.0], [1.0, 5.0, 9.0]], sample=2.0).axes
    assert right.get_title(loc="left") == "One sample becomes -0.92 to 1.00"
    x, y = line(right, "rank 0")
    assert (x == [0, 9]).all() and np.allclose(y, [-1, 8])
    assert np.allclose(line(right, "rank 1")[1], (np.array([0, 9]) - 5) / np.sqrt(32 / 3))
    assert np.allclose(line(right, "whole batch")[1], (np.array([0, 9]) - 3.4) / np.sqrt(10.64))
    dots = [dot for dot in right.get_lines() if list(dot.get_xdata()) == [2.0]]
    outputs = [dot.get_ydata()[0] for dot in dots]
    assert np.allclose(outputs, [1, -3 / np.sqrt(32 / 3), -1.4 / np.sqrt(10.64)])
    assert row_names(left) == ["rank 0", "rank 1", "whole batch"] and left.yaxis_inverted()


def test_statistics_of_shares_are_predicted_lines_and_measured_markers():
    sizes = np.array([2, 4, 8])
    predicted = [[3.0, 2.0, 1.0], [0.5, 0.75, 0.875], [0.9, 0.6, 0.4]]
    measured = [[3.1, 2.1, 1.1], [0.4, 0.7, 0.8], [1.0, 0.7, 0.5]]
    figure = plotting.share_statistics(sizes, predicted, measured)
    for ax, prediction, found in zip(figure.axes, predicted, measured, strict=True):
        assert (line(ax, "predicted") == [sizes, prediction]).all()
        assert (line(ax, "measured") == [sizes, found]).all()
        assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > max(*prediction, *found)
    with pytest.raises(ValueError):
        plotting.share_statistics(sizes, predicted, measured[:2])
