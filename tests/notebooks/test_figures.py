"""Figures of notebooks 04, 20, 21 and 22 show their data."""

import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch

from tutorial_dl.course import foundations, plotting


def texts(figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.texts]


def test_the_figure_of_message_times():
    sizes = 2 ** np.arange(3, 23)
    alpha, beta = 2e-6, 1 / 10e9  # half of the bandwidth is reached at 20,000 bytes
    figure = plotting.message_times(sizes, alpha + sizes * beta, {"model": (alpha, beta)})
    assert texts(figure) == [f"n½ = {20000 / 1024:.3g} KiB"]
    measured, predicted, _ = figure.axes[0].lines
    # The measured points must lie on the predicted line: both in µs over bytes.
    assert np.allclose(
        np.interp(np.log(sizes), np.log(predicted.get_xdata()), predicted.get_ydata()),
        measured.get_ydata(),
        rtol=1e-3,
    )
    assert measured.get_ydata()[0] == pytest.approx(2.0008)  # µs
    with pytest.raises(ValueError, match="20 sizes, got 3 times"):
        plotting.message_times(sizes, [1, 2, 3], {"model": (alpha, beta)})


def test_the_figure_of_ranks():
    figure = plotting.ranks(["a", "b", "c"], messages=[(0, 1), (2, 0)])
    assert texts(figure) == ["rank 0", "a", "rank 1", "b", "rank 2", "c", "1", "2"]
    arrows = [p for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)]
    assert [(round(a._posA_posB[0][0]), round(a._posA_posB[1][0])) for a in arrows] == [
        (0, 1),
        (2, 0),
    ]
    for message in ((0, 3), (-1, 0), (1, 1)):
        with pytest.raises(ValueError, match="both must be ranks from 0 to 2, and different"):
            plotting.ranks(["a", "b", "c"], messages=[message])


def test_the_figures_of_the_duel():
    path = foundations.duel((0.5, 0.0), 0.4, 5)
    ax = plotting.duels({"one": path}).axes[0]
    np.testing.assert_array_equal(np.transpose(ax.get_lines()[0].get_data()), path)
    factors = plotting.duel_factors([0.1, 0.2], {"a": [1, 1.1]}, {"a": lambda rate: 1 + rate})
    np.testing.assert_array_equal(factors.axes[0].get_lines()[0].get_ydata(), [1, 1.1])
    found = plotting.distances_by_epoch({"weights": [1.0, 0.5]}).axes[0].get_lines()[0]
    np.testing.assert_array_equal(np.transpose(found.get_data()), [[1, 1.0], [2, 0.5]])
    made = np.random.default_rng(0).normal(size=500)
    film = plotting.forger_film(made, [("first", made, np.tanh)], -3, 3, bins=6)
    assert film is not None


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
