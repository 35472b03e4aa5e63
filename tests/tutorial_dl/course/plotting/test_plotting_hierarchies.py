"""Figures of hierarchies show the data they are given."""

from __future__ import annotations

import numpy as np
import pytest

from tutorial_dl.course import plotting


def of(ax, label):
    """The data of the one line with this legend entry, shape (2, points)."""
    (found,) = [drawn for drawn in ax.get_lines() if drawn.get_label() == label]
    return np.array(found.get_data(), float)


def test_what_is_served_is_predicted_lines_and_measured_markers():
    predicted = {"one": [1.0, 2.0, 2.0], "two": [np.nan, 2.0, 4.0]}
    figure = plotting.served([1, 2, 3], predicted, {"two": {2: 1.5}}, unit="samples per second")
    (ax,) = figure.axes
    assert (of(ax, "one, predicted") == [[1, 2, 3], [1, 2, 2]]).all()
    assert (of(ax, "two, predicted") == [[2, 3], [2, 4]]).all()  # only where a layout is possible
    assert (of(ax, "two, measured") == [[2], [1.5]]).all()
    colours = {line.get_label(): line.get_color() for line in ax.get_lines()}
    assert colours["two, predicted"] == colours["two, measured"] != colours["one, predicted"]
    assert len(ax.get_lines()) == 3 and ax.get_ylabel() == "samples per second"
    assert figure._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no prediction for three; there is one for one, two"):
        plotting.served([1, 2, 3], predicted, {"three": {1: 1.0}})


def test_what_is_not_seen():
    predicted, measured = {"groups": [4, 7, 19], "one": [3, 3, 3]}, {"groups": {4: 7.1}}
    (ax,) = plotting.unseen([1, 4, 16], predicted, measured, title="message").axes
    assert (of(ax, "groups, predicted") == [[1, 4, 16], [4, 7, 19]]).all()
    assert (of(ax, "groups, measured") == [[4], [7.1]]).all()
    assert ax.get_title("left") == "message" and len(ax.get_lines()) == 3
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "4", "16"]
    assert {"served", "unseen"} <= set(plotting.FIGURES["parameter_server"]) <= set(dir(plotting))
