"""Figures of batch normalisation show the data they are given."""

from __future__ import annotations

import numpy as np
import pytest

from tutorial_dl.course import plotting


def of(ax, label):
    """The data of the one line with this legend entry, shape (2, points)."""
    (found,) = [drawn for drawn in ax.get_lines() if drawn.get_label() == label]
    return np.array(found.get_data(), float)


def draw_all():
    sizes = np.array([2, 4, 8])
    three = [1.0 / sizes, 1 - 1 / sizes, 2.0 / sizes]
    distance = {"one": np.array([0.1, 0.1]), "average": np.array([0.1, 0.05])}
    return {
        "normalised_apart": plotting.normalised_apart([[0.0, 2.0], [1.0, 5.0, 6.0]], 2.0),
        "share_statistics": plotting.share_statistics(sizes, three, [1.1 * x for x in three]),
        "moving_statistics": plotting.moving_statistics([1, 2], distance, distance),
    }


def test_every_figure_is_drawn():
    figures = draw_all()
    assert set(figures) <= set(dir(plotting))
    for name, figure in figures.items():
        assert figure._repr_png_().startswith(b"\x89PNG"), name
        for ax in figure.axes:
            assert ax.get_title(loc="left") and ax.get_xlabel(), name


def test_a_sample_becomes_what_each_ranks_mean_and_deviation_make_of_it():
    """Mean, deviation: (0, 2): 1 and 1; (1, 5, 9): 5 and sqrt(32/3); all: 3.4 and sqrt(10.64)."""
    left, right = plotting.normalised_apart([[0.0, 2.0], [1.0, 5.0, 9.0]], sample=2.0).axes
    assert right.get_title(loc="left") == "One sample becomes -0.92 to 1.00"
    x, y = of(right, "rank 0")
    assert (x == [0, 9]).all() and np.allclose(y, [-1, 8])
    assert np.allclose(of(right, "rank 1")[1], (np.array([0, 9]) - 5) / np.sqrt(32 / 3))
    assert np.allclose(of(right, "whole batch")[1], (np.array([0, 9]) - 3.4) / np.sqrt(10.64))
    dots = [dot for dot in right.get_lines() if list(dot.get_xdata()) == [2.0]]
    outputs = [dot.get_ydata()[0] for dot in dots]
    assert np.allclose(outputs, [1, -3 / np.sqrt(32 / 3), -1.4 / np.sqrt(10.64)])
    names = [text.get_text() for text in left.get_yticklabels()]
    assert names == ["rank 0", "rank 1", "whole batch"] and left.yaxis_inverted()


def test_a_share_without_a_deviation_is_refused():
    with pytest.raises(ValueError, match="rank 1 must have at least 2 samples, got 1"):
        plotting.normalised_apart([[0.0, 2.0], [1.0]], 2.0)


def test_statistics_of_shares_are_predicted_lines_and_measured_markers():
    sizes = np.array([2, 4, 8])
    predicted = [[3.0, 2.0, 1.0], [0.5, 0.75, 0.875], [0.9, 0.6, 0.4]]
    measured = [[3.1, 2.1, 1.1], [0.4, 0.7, 0.8], [1.0, 0.7, 0.5]]
    figure = plotting.share_statistics(sizes, predicted, measured)
    for ax, line, points in zip(figure.axes, predicted, measured, strict=True):
        assert (of(ax, "predicted") == [sizes, line]).all()
        assert (of(ax, "measured") == [sizes, points]).all()
        assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > max(*line, *points)
    with pytest.raises(ValueError):
        plotting.share_statistics(sizes, predicted, measured[:2])


def test_moving_statistics_have_a_line_and_points_of_one_colour():
    predicted = {"one rank's": [0.08, 0.08, 0.08], "average": [0.08, 0.04, 0.015]}
    measured = {"average": [0.07, 0.05, 0.02], "one rank's": [0.09, 0.08, 0.07]}
    (ax,) = plotting.moving_statistics([1, 4, 16], predicted, measured).axes
    lines = ax.get_lines()
    assert len(lines) == 4
    for label in predicted:
        (points,) = [drawn for drawn in lines if drawn.get_label() == label]
        assert list(points.get_ydata()) == measured[label] and points.get_linestyle() == "None"
        (line,) = [d for d in lines if d.get_color() == points.get_color() and d is not points]
        assert list(line.get_ydata()) == predicted[label] and line.get_linestyle() != "None"
    ax.figure.canvas.draw()
    assert {"0.02", "0.05"} <= {text.get_text() for text in ax.get_yticklabels()}
    with pytest.raises(ValueError, match=r"the same names; got .* and"):
        plotting.moving_statistics([1, 4, 16], predicted, {"average": [1, 2, 3]})
