"""Figures of curves and descents show the data they are given, and leave nothing behind."""

import inspect
import io
import subprocess
import sys
from base64 import b64decode
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import rcParams
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

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


def line(ax, label):
    """The data of the one line with this legend entry, shape (2, points)."""
    (found,) = [drawn for drawn in ax.get_lines() if drawn.get_label() == label]
    return np.array(found.get_data())


def draw_all(loss, runs):
    """Draw one figure of each kind."""
    x = np.linspace(0, 1, 5)
    return {
        "fits": plotting.fits(x, x**2, {"square": np.square}, np.square),
        "fit_errors": plotting.fit_errors([1, 2], x[:2] + 1, x[2:4], (x[:2] + 1, x[2:4]), 0.1),
        "solver_errors": plotting.solver_errors([1, 2], {"QR": x[1:3]}, {"κ": x[1:3]}),
        "loss_paths": plotting.loss_paths(loss, runs),
        "loss_curves": plotting.loss_curves(loss, runs, floors={"mini": 0.01}),
        "error_factors": plotting.error_factors(x, x, np.square, bound=0.8),
    }


@pytest.mark.thorough
def test_every_figure_is_drawn_with_title_and_axes_and_the_global_style_is_left_alone(loss, runs):
    before = dict(rcParams)
    figures = draw_all(loss, runs)
    assert {*figures, "descent_film"} == set(plotting.FIGURES["curves"])
    for name, figure in figures.items():
        (ax,) = figure.axes
        assert isinstance(figure, Figure), name
        assert ax.get_title("left") and ax.get_xlabel() and ax.get_ylabel(), name
        assert ax.get_legend() is not None, name
        picture = np.asarray(Image.open(io.BytesIO(figure._repr_png_())).convert("RGB"))
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 10, name
    assert dict(rcParams) == before


def test_figures_are_not_kept_alive_by_pyplot(loss, runs):
    import matplotlib.pyplot as plt

    draw_all(loss, runs)
    assert plt.get_fignums() == []


def test_any_figure_can_be_drawn_on_given_axes(loss, runs):
    _, (left, right) = (figure := Figure()), figure.subplots(1, 2)
    assert plotting.loss_paths(loss, runs, ax=left) is figure
    assert plotting.fits(np.arange(3), np.arange(3), {}, np.sin, ax=right) is figure
    assert left.get_lines() and right.get_lines()


def test_fits_shows_samples_curves_and_truth():
    x, y = np.array([0.0, 1, 2]), np.array([5.0, 6, 4])
    (ax,) = plotting.fits(x, y, {"double": lambda x: 2 * x}, np.sin).axes
    np.testing.assert_array_equal(line(ax, "samples"), [x, y])
    grid, double = line(ax, "double")
    assert (grid[0], grid[-1]) == (0, 2)
    np.testing.assert_array_equal(double, 2 * grid)
    np.testing.assert_array_equal(line(ax, "truth")[1], np.sin(grid))
    assert ax.get_ylim() == (3.5, 6.5)  # the samples' range and a margin, whatever the curves are


def test_errors_show_predicted_beside_measured():
    sizes, measured, predicted = [1, 2, 3], np.array([[3.0, 2, 1], [4, 3, 5]]), np.ones((2, 3))
    (ax,) = plotting.fit_errors(sizes, *measured, predicted, noise=0.5).axes
    np.testing.assert_array_equal(line(ax, "training, measured"), [sizes, measured[0]])
    np.testing.assert_array_equal(line(ax, "held out, measured"), [sizes, measured[1]])
    np.testing.assert_array_equal(line(ax, "held out, predicted"), [sizes, [1, 1, 1]])
    np.testing.assert_array_equal(line(ax, "noise variance")[1], [0.25, 0.25])
    (ax,) = plotting.solver_errors(sizes, {"QR": measured[0]}, {"theory": measured[1]}).axes
    np.testing.assert_array_equal(line(ax, "QR"), [sizes, measured[0]])
    np.testing.assert_array_equal(line(ax, "theory"), [sizes, measured[1]])
    assert ax.get_yscale() == "log"


def test_error_factors_marks_the_bound():
    rates = np.array([0.1, 0.5])
    (ax,) = plotting.error_factors(rates, 1 - rates, lambda eta: abs(1 - eta), bound=2.0).axes
    np.testing.assert_array_equal(line(ax, "measured"), [rates, 1 - rates])
    grid, predicted = line(ax, "predicted")
    np.testing.assert_array_equal(predicted, np.abs(1 - grid))
    assert grid[-1] > 2
    np.testing.assert_array_equal(line(ax, "2 / $λ_{max}$")[0], [2, 2])


def test_paths_lie_on_the_contours_of_the_loss(loss, runs):
    (ax,) = plotting.loss_paths(loss, runs).axes
    np.testing.assert_array_equal(line(ax, "full"), runs["full"].path.T)
    np.testing.assert_array_equal(line(ax, "minimum")[:, 0], loss.minimiser())
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
    (ax,) = plotting.loss_curves(loss, runs, floors={"mini": 0.01}).axes
    above = [loss(w) - loss(loss.minimiser()) for w in runs["mini"].path[1:]]
    samples, mean = line(ax, "mini")
    np.testing.assert_allclose(samples, 20 * np.arange(1, 7))
    np.testing.assert_allclose(mean, np.reshape(above, (6, 3)).mean(axis=1), rtol=1e-9)
    assert line(ax, "full")[0][-1] == 120
    assert any(np.array_equal(drawn.get_ydata(), [0.01, 0.01]) for drawn in ax.get_lines())

    (ax,) = plotting.loss_curves(loss, runs, {}, by="steps").axes
    assert (line(ax, "full")[0][-1], line(ax, "mini")[0][-1]) == (6, 18)


def test_a_film_moves_and_shows_itself(loss, runs):
    film = plotting.descent_film(loss, runs, frames=5, by="samples")
    gif = Image.open(io.BytesIO(film.gif))
    assert gif.n_frames == film.frames == 5
    frames = []
    for frame in range(5):
        gif.seek(frame)
        frames.append(np.asarray(gif.convert("RGB")).astype(int))
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


def test_wrong_input_is_named(loss, runs):
    three = LeastSquares(np.eye(3), np.ones(3))
    run = {"run": descend(three, np.zeros(3), 0.1, epochs=2)}
    with pytest.raises(ValueError, match="loss must have 2 parameters to have contours, got 3"):
        plotting.loss_paths(three, run)
    with pytest.raises(ValueError, match='by must be "steps" or "samples", got \'time\''):
        plotting.loss_curves(loss, runs, {}, by="time")
    with pytest.raises(ValueError, match='by must be "steps" or "samples", got \'time\''):
        plotting.descent_film(loss, runs, by="time")
    with pytest.raises(ValueError, match="at least one frame"):
        plotting.descent_film(loss, runs, frames=0)


def test_names_are_found_in_one_file_each():
    assert plotting.fits is curves.fits
    assert plotting.curves is curves
    assert {"fits", "curves"} <= set(dir(plotting))
    with pytest.raises(AttributeError, match="attribute pie"):
        plotting.pie  # noqa: B018


def test_no_name_is_offered_by_two_files():
    names = [name for offered in plotting.FIGURES.values() for name in offered]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def test_matplotlib_waits_for_the_first_figure():
    code = (
        "import sys, tutorial_dl.course.plotting as p\n"
        "assert 'matplotlib' not in sys.modules\n"
        "p.fits; assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_figure_of_one_panel_takes_its_data_a_title_and_axes():
    """Their caller gives no axes, though the function that draws is written with them."""
    names = list(inspect.signature(plotting.unit_errors).parameters)
    assert names == ["units", "measured", "predicted", "title", "ax"]
    with style.axes() as ax:
        figure = plotting.unit_errors([8, 16], [0.4, 0.1], [0.4, 0.1], title="another", ax=ax)
    assert figure is ax.figure and ax.get_title(loc="left") == "another"
    (ax,) = plotting.unit_errors([8, 16], [0.4, 0.1], [0.4, 0.1]).axes
    assert ax.get_title(loc="left") == "Twice the units, a quarter of the error"
