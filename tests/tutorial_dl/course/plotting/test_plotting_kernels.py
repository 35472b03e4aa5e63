"""Figures of kernels show the given counts and measurements."""

from __future__ import annotations

import numpy as np
from drawn import legend, row_names

from tutorial_dl.course import plotting
from tutorial_dl.course.traffic import Trip

PLAN = [Trip("multiply", ("g",), ("t",)), Trip("add", ("w", "t"), ("w",))]


def test_a_cell_says_what_happens_to_a_vector():
    figure = plotting.trips({"numpy": PLAN, "one": [Trip("all", ("g", "w"), ("w",))]}, "gwt")
    two, one = figure.axes
    cells = {text.get_position(): text.get_text() for text in two.texts}
    assert cells == {(0, 0): "r", (2, 0): "fw", (1, 1): "rw", (2, 1): "r"}
    assert {text.get_position(): text.get_text() for text in one.texts} == {
        (0, 0): "r", (1, 0): "rw"
    }  # fmt: skip
    assert two.get_title("left") == "numpy:\n2 trips, 6 numbers per weight"
    assert one.get_title("left") == "one:\n1 trip, 3 numbers per weight"
    assert row_names(two) == ["multiply", "add"]
    assert two.get_ylim() == one.get_ylim() and two.get_ylim()[0] > two.get_ylim()[1]
    # Every cell has a box in the legend's shade.
    shades = {handle.get_facecolor() for handle in figure.legends[0].get_patches()}
    assert len(two.patches) == 6 and len(shades) == 3
    assert {box.get_facecolor() for box in two.patches} - {(1.0, 1.0, 1.0, 1.0)} == shades


def test_predicted_is_a_line_and_measured_a_marker():
    measured = {"loop": np.array([5.0, 4.0, 9.0]), "numpy": np.array([1.0, 1.0, 3.0])}
    figure = plotting.beside({"numpy": 0.5}, measured, "message")
    (ax,) = figure.axes
    markers = [line for line in ax.lines if line.get_marker() == "o"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in markers] == [(4, 0), (1, 1)]
    bars = [collection.get_segments()[0][:, 0].tolist() for collection in ax.collections]
    assert bars == [[4, 5], [1, 1]]  # from the fastest to the median
    (predicted,) = (line for line in ax.lines if line.get_label() == "predicted")
    assert list(predicted.get_xdata()) == [0.5, 0.5] and np.mean(predicted.get_ydata()) == 1
    assert legend(ax) == ["predicted", "measured"]
    assert ax.get_title("left") == "message" and ax.get_xlim()[0] == 0
    assert row_names(ax) == ["loop", "numpy"]
    logarithmic = plotting.beside({}, measured, "", logarithmic=True).axes[0]
    assert logarithmic.get_xscale() == "log"


def test_parts_are_stacked_and_added_up():
    ways = {"messages": {"sent": 6, "state": 8}, "fused": {"state": 4, "weights": 2}}
    figure = plotting.step_traffic(ways)
    (ax,) = figure.axes
    drawn = {(bar.get_y() + 0.3, bar.get_x(), bar.get_width()) for bar in ax.patches}
    drawn = {(round(y), x, width) for y, x, width in drawn if width}
    assert drawn == {(0, 0, 6), (0, 6, 8), (1, 0, 4), (1, 4, 2)}
    totals = [text.get_text() for text in ax.texts if text.get_weight() == "bold"]
    assert totals == ["14", "6"]
    names = legend(figure)
    assert names == ["sent", "state", "weights"]
