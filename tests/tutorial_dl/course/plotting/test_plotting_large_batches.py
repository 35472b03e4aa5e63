"""Figures of large batches show the data they are given."""

from __future__ import annotations

import numpy as np
import pytest

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.course.plotting import batches

BATCHES = [32, 64, 128]
RUNS = {
    "same rate": [[0.98, 0.96], [0.95, 0.95], [0.90, 0.80]],
    "linear rule": [[0.98, 0.96], [0.98, 1.0], [0.1, 0.1]],
}
ROWS = [("Goyal", {"steps": 14000.0, "rate": 32e3}), ("Ying", {"steps": 3500.0, "rate": 870e3})]


def line(ax, label):
    (found,) = [drawn for drawn in ax.get_lines() if drawn.get_label() == label]
    return np.array(found.get_data(), float)


def test_noise_is_a_line_and_markers():
    (ax,) = plotting.gradient_noise(BATCHES, [0.4, 0.2, 0.1], [0.5, 0.2, 0.1]).axes
    assert (line(ax, "predicted") == [BATCHES, [0.4, 0.2, 0.1]]).all()
    assert (line(ax, "measured")[1] == [0.5, 0.2, 0.1]).all()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["32", "64", "128"]


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
    entries = [text.get_text() for text in ax.get_legend().get_texts()]
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
    assert [text.get_text() for text in ax.texts] == ["its limit,\npredicted", "memory"]


def test_ranks_are_counted_above():
    (ax,) = plotting.batch_errors(BATCHES, RUNS, per_rank=32).axes
    (upper,) = ax.child_axes
    assert [text.get_text() for text in upper.get_xticklabels()] == ["1", "2", "4"]
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
    assert [text.get_text() for text in ax.texts] == ["batch 512: 0.32", "other: 0.16"]
    assert len(ax.get_legend().get_texts()) == 1
    assert ax.get_ylim()[0] < 0.16 and ax.get_ylim()[1] > 1.2


def test_records_are_rows_from_top_to_bottom():
    steps, rate = plotting.records(ROWS).axes
    assert steps.get_xlabel() == "steps" and rate.get_xlabel() == "rate"
    assert line(steps, "_child0").tolist() == [[14000, 3500], [0, 1]]
    assert line(rate, "_child0").tolist() == [[32e3, 870e3], [0, 1]]
    assert [text.get_text() for text in rate.texts] == ["32,000", "870,000"]
    assert [text.get_text() for text in steps.get_yticklabels()] == ["Goyal", "Ying"]
    assert steps.get_ylim()[0] > steps.get_ylim()[1]
    for ax in (steps, rate):
        assert ax.get_xscale() == "log" and ax.get_xlim()[1] > 2 * max(line(ax, "_child0")[0])


def test_every_figure_is_a_picture_and_all_names_are_offered():
    figures = {
        "gradient_noise": plotting.gradient_noise(BATCHES, [3, 2, 1], [3, 2, 1]),
        "batch_errors": plotting.batch_errors(BATCHES, RUNS, per_rank=32),
        "stable_rates": plotting.stable_rates([1, 2], [[1, 2]], {}),
        "records": plotting.records(ROWS),
    }
    others = {"moving_statistics", "normalised_apart", "share_statistics"}  # batch normalisation
    assert set(figures) | others == set(plotting.FIGURES["batches"]) <= set(dir(plotting))
    for name, figure in figures.items():
        assert isinstance(figure, style.Figure), name
        assert figure._repr_png_().startswith(b"\x89PNG"), name
        assert figure.axes[0].get_title("left"), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: plotting.batch_errors(BATCHES, {"LARS": [[0.9], [0.8]]}),
            r"LARS: accuracies must have shape \(3, seeds\), .*; got \(2, 1\)",
        ),
        (
            lambda: plotting.batch_errors(BATCHES, {"LARS": [0.9, 0.8, 0.7]}),
            r"LARS: accuracies must have shape .*; got \(3,\)",
        ),
        (
            lambda: plotting.records([*ROWS, ("Jia", {"steps": 1.0})]),
            "Jia must have steps, rate; got steps",
        ),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
