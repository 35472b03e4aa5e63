"""Figures of curves and descents show the data they are given."""

from base64 import b64decode
from itertools import pairwise

import numpy as np
import pytest
from drawn import line, pictures_of
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tutorial_dl import figure_style as style
from tutorial_dl.course import plotting
from tutorial_dl.course.foundations import LeastSquares, Polynomial, descend
from tutorial_dl.course.plotting import curves


@pytest.fixture
def loss():
    x = np.linspace(-1, 1, 20)
    return LeastSquares.of(Polynomial(1), x, 1 + 2 * x + 0.3 * np.cos(9 * x))


@pytest.fixture
def runs(loss):
    return {
        name: descend(loss, np.zeros(2), 0.1, batch_size=b, epochs=6, gradient_tolerance=None)
        for name, b in (("full", 20), ("mini", 8))  # 1 and 3 steps per epoch
    }


def test_fits_shows_samples_curves_and_truth():
    x, y = np.array([0.0, 1, 2]), np.array([5.0, 6, 4])
    (ax,) = plotting.fits(x, y, {"double": lambda x: 2 * x}, np.sin).axes
    np.testing.assert_array_equal(line(ax, "samples"), [x, y])
    grid, double = line(ax, "double")
    assert (grid[0], grid[-1]) == (0, 2)
    np.testing.assert_array_equal(double, 2 * grid)
    np.testing.assert_array_equal(line(ax, "truth")[1], np.sin(grid))
    assert ax.get_ylim() == (3.5, 6.5)  # the samples' range and a margin, whatever the curves are


def test_error_factors_marks_the_bound():
    rates = np.array([0.1, 0.5])
    (ax,) = plotting.error_factors(rates, 1 - rates, lambda eta: abs(1 - eta), bound=2.0).axes
    np.testing.assert_array_equal(line(ax, "measured"), [rates, 1 - rates])
    grid, predicted = line(ax, "predicted")
    np.testing.assert_array_equal(predicted, np.abs(1 - grid))
    assert grid[-1] > 2
    np.testing.assert_array_equal(line(ax, "2 / $λ_{max}$")[0], [2, 2])


def test_paths_lie_on_the_contours_of_the_loss(loss, runs):
    ax = Figure().subplots()
    curves._surface(loss, [run.path for run in runs.values()], ax)
    assert ax.get_aspect() == 1  # otherwise right angles would be distorted

    contours = ax.collections[-1]
    levels, paths = contours.levels, contours.get_paths()
    assert len(levels) > 5
    drawn = 0
    for level, path in zip(levels, paths, strict=True):
        for w in path.vertices[::20]:  # corners of the grid's cells: near the true contour
            drawn += 1
            assert loss(w) - loss(loss.minimiser()) == pytest.approx(level, rel=0.02, abs=0.01)
    assert drawn > 20


def test_loss_curves_are_means_over_each_epoch_at_equal_samples(loss, runs):
    (ax,) = plotting.loss_curves(loss, runs).axes
    above = [loss(w) - loss(loss.minimiser()) for w in runs["mini"].path[1:]]
    samples, mean = line(ax, "mini")
    np.testing.assert_allclose(samples, 20 * np.arange(1, 7))
    np.testing.assert_allclose(mean, np.reshape(above, (6, 3)).mean(axis=1), rtol=1e-9)
    assert line(ax, "full")[0][-1] == 120

    (ax,) = plotting.loss_curves(loss, runs, by="steps").axes
    assert (line(ax, "full")[0][-1], line(ax, "mini")[0][-1]) == (6, 18)


def test_a_film_moves_and_shows_itself(loss, runs):
    film = plotting.descent_film(loss, runs, frames=5, by="samples")
    frames = pictures_of(film)
    assert len(frames) == film.frames == 5
    changed = [np.abs(b - a).sum() for a, b in pairwise(frames)]
    assert min(changed) > 0
    assert np.array_equal(frames[-1][2, 2], [255, 255, 255])

    # The map in the left half has markers from the first frame on, and paths that grow.
    orange = np.array(to_rgb(style.COLOURS[1])) * 255
    left = [frame[:, : frame.shape[1] // 2] for frame in frames]
    seen = [(np.abs(frame - orange).max(axis=2) < 8).sum() for frame in left]
    assert seen[0] > 0 and seen[-1] > 1.2 * seen[0]

    page = film._repr_mimebundle_()["text/html"]
    assert b64decode(page.split("base64,")[1].split('"')[0]) == film.gif
