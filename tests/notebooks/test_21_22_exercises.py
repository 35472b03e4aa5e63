"""Notebooks 21 and 22: folded solutions pass, open cells are no error, mistakes are named."""

import numpy as np
import pytest
from exercise_cells import one_line, says
from notebook_cells import Notebook

from tutorial_dl.course import plotting
from tutorial_dl.course.exercises import check


@pytest.mark.parametrize(
    "exercise", ["21.traffic", "21.overlap", "22.deeper", "22.separation_power"]
)
def test_the_folded_solution_is_correct_and_the_open_cell_is_not_yet(exercise, capsys):
    notebook, names = Notebook(exercise[:2]), {"np": np, "check": check}
    exec(notebook.open_cell(exercise), names)
    one_line(capsys, "not yet: ")
    exec(notebook.solution_of(exercise), names)
    one_line(capsys, "correct: ")


def raw(p, q):
    return 0.5 * np.sum((p - q)[p + q > 0] ** 2 / (p + q)[p + q > 0])


def twice(p, q):
    return 2 * raw(p / p.sum(), q / q.sum())


def of_common_bins(p, q):
    p, q, both = p / p.sum(), q / q.sum(), (p > 0) & (q > 0)
    return 0.5 * np.sum((p - q)[both] ** 2 / (p + q)[both])


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("21.traffic", 7.0, "how many steps does the discriminator make"),
        ("21.traffic", 29.4, "which player makes five steps"),
        ("21.traffic", 3.15, "a weight has 4 bytes"),
        ("21.traffic", 12.6e6, "check the units"),
        ("21.overlap", [84, 84, 64], "no gradient to hide under"),
        ("21.overlap", [84, 84, 44], "share a core"),
        ("21.overlap", [74, 84, 74], "players in turn"),
        ("21.overlap", 74, "three numbers"),
        ("22.deeper", np.log(20), "in units of what"),
        ("22.deeper", 4.03 * np.log10(20), "by e, not by 10"),
        ("22.deeper", 80.6, "the logarithm of the energy"),
        ("22.separation_power", raw, "normalise both first"),
        ("22.separation_power", twice, "do not overlap should have 1"),
        ("22.separation_power", of_common_bins, "empty in one of them"),
    ],
)
def test_a_mistake_is_named(exercise, answer, hint, capsys):
    assert hint in says(capsys, exercise, answer)


def test_the_figure_of_strategies():
    figure = plotting.quality_at_equal_terms({"a": ([0.5, 1.0], [1.0, 0.3])}, 0.2)
    left, right = figure.axes
    np.testing.assert_array_equal(left.lines[0].get_xdata(), [1, 2])
    np.testing.assert_array_equal(right.lines[0].get_xdata(), [0.5, 1.0])
    for ax in (left, right):
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1.0, 0.3])


def test_the_figures_of_showers():
    voxels = np.zeros((4, 3, 3))
    voxels[1, 2] = 1.0  # GeV, in each of three
    image = plotting.shower_pictures({"one": voxels}).axes[0].images[0].get_array()
    assert image.shape == (3, 4) and image[2, 1] == 3 and image.mask.sum() == 11
    lines = plotting.shower_depths([10, 100], [5, 7], [5.1, 6.9]).axes[0].lines
    np.testing.assert_array_equal(lines[1].get_ydata(), [5.1, 6.9])
    ax = plotting.layer_profiles({"a": [1.0, 2.0], "b": [1.5, 2.5]}).axes[0]
    assert [bar.get_height() for bar in ax.patches] == [1.0, 2.0]
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1.5, 2.5])
    rows = {"floor": {"x": 0.01, "y": 0.02}, "ceiling": {"x": 1.0, "y": 0.9}}
    ax = plotting.separations_by_feature(rows).axes[0]
    names = [label.get_text() for label in ax.get_yticklabels()]
    places = dict(zip(names, ax.get_yticks(), strict=True))
    for line, of in zip(ax.lines, rows.values(), strict=True):
        found = dict(zip(line.get_ydata(), line.get_xdata(), strict=True))
        assert {name: found[places[name]] for name in of} == of
    of = {"a": np.linspace(0, 1, 50), "b": np.linspace(5, 6, 50)}  # b lies outside: the last bin
    panel = plotting.shower_histograms({"width": of}).axes[0]
    assert sum(bar.get_height() for bar in panel.patches[:30]) == pytest.approx(1)
