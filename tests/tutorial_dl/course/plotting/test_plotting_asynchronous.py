"""Figures of asynchronous training show the data they are given."""

from __future__ import annotations

import numpy as np
import pytest

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting

SLOW = [{"val_loss": v, "val_accuracy": 1 - v, "seconds": 2.0} for v in (0.4, 0.2, 0.1)]
QUICK = [{"val_loss": v, "val_accuracy": 1 - v, "seconds": 0.5} for v in (0.6, 0.3)]
RUNS = {"synchronous": SLOW, "downpour": QUICK}


def line(ax, label):
    (found,) = [drawn for drawn in ax.get_lines() if drawn.get_label() == label]
    return np.array(found.get_data(), float).tolist()


def test_by_samples_and_by_seconds():
    left, right = plotting.on_equal_terms(RUNS, samples=100).axes
    assert line(left, "synchronous") == [[100, 200, 300], [0.4, 0.2, 0.1]]
    assert line(left, "downpour") == [[100, 200], [0.6, 0.3]]
    assert line(right, "synchronous") == [[2, 4, 6], [0.4, 0.2, 0.1]]  # from the first sample on
    assert line(right, "downpour") == [[0.5, 1], [0.6, 0.3]]
    legend = [text.get_text() for text in right.get_legend().get_texts()]
    assert legend == [*RUNS, "the quickest run ends"]
    grey = [of for of in right.get_lines() if of.get_color() == style.GREY]
    assert [of.get_xdata()[0] for of in grey] == [1.0]  # up to the end of the quickest run
    assert left.get_yscale() == "log" and left.get_ylabel() == "validation loss"


def test_below_each_other_with_the_legend_below_both():
    figure = plotting.on_equal_terms(RUNS, samples=100, columns=1)
    above, below = figure.axes
    assert line(above, "downpour") == [[100, 200], [0.6, 0.3]]
    assert line(below, "downpour") == [[0.5, 1], [0.6, 0.3]] and below.get_ylabel()
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*RUNS, "the quickest run ends"]
    assert legend.get_window_extent().y1 <= below.get_window_extent().y0
    assert below.get_window_extent().y1 <= above.get_window_extent().y0


def test_a_narrow_range_of_losses_has_three_labels_or_more():
    rows = [{"val_loss": loss, "seconds": 1.0} for loss in (1.4, 0.6, 0.27)]
    left, _ = plotting.on_equal_terms({"gem": rows}, 100).axes
    assert [text.get_text() for text in left.get_yticklabels()] == ["0.3", "0.5", "0.7", "1"]


def test_seconds_have_few_labels_so_that_none_overlap():
    rows = [{"val_loss": 1.0, "seconds": 0.0237} for _ in range(8)]
    _, right = plotting.on_equal_terms({"gem": rows}, 100).axes
    assert 2 < len(right.get_xticks()) <= 6


def test_titles_are_those_given():
    left, right = plotting.on_equal_terms(RUNS, 100, titles=("one", "other")).axes
    assert (left.get_title("left"), right.get_title("left")) == ("one", "other")


def test_it_is_a_picture_and_the_name_is_offered():
    assert "on_equal_terms" in plotting.FIGURES["parameter_server"]
    assert plotting.on_equal_terms(RUNS, 100)._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({}, "no runs"),
        ({"gem": []}, "gem: no 'val_loss' in its history, which has no epochs"),
        ({"gem": [{"val_loss": 1.0}]}, "gem: no 'seconds' in its history, which has val_loss"),
    ],
)
def test_wrong_input_is_named(runs, message):
    with pytest.raises(ValueError, match=message):
        plotting.on_equal_terms(runs, 100)
