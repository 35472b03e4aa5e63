"""Figures of kernels show the given counts and measurements."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.course.plotting import kernels
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
    assert [label.get_text() for label in two.get_yticklabels()] == ["multiply", "add"]
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
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["predicted", "measured"]
    assert ax.get_title("left") == "message" and ax.get_xlim()[0] == 0
    assert [label.get_text() for label in ax.get_yticklabels()] == ["loop", "numpy"]
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
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["sent", "state", "weights"]


def test_every_figure_is_a_picture_and_all_names_are_offered():
    for figure in (
        plotting.trips({"numpy": PLAN}, "gwt"),
        plotting.beside({"a": 1.0}, {"a": [1.0]}, "one"),
        plotting.step_traffic({"fused": {"state": 4}}),
    ):
        assert isinstance(figure, style.Figure)
        picture = np.asarray(Image.open(io.BytesIO(figure._repr_png_())).convert("RGB"))
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10
    assert plotting.beside is kernels.beside


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plotting.trips({"numpy": PLAN}, "gw"), "numpy: trips use t, which vectors must"),
        (lambda: plotting.beside({"b": 1.0}, {"a": [1.0]}, ""), "predicted, but not measured: b"),
        (lambda: plotting.step_traffic({"x": dict.fromkeys("abcdef", 1)}), "most 5 parts, got 6"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
