"""Bases and fits against closed forms, numpy.polynomial and scipy."""

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.stats
from bowls import bowl

from tutorial_dl.course import foundations
from tutorial_dl.course.foundations import LeastSquares, Polynomial, fit


@pytest.fixture
def random():
    return np.random.default_rng(11)


# bases


@pytest.mark.parametrize("degree", [0, 1, 7])
def test_polynomial_bases_are_numpys(random, degree):
    x = random.uniform(-3, 5, 20)
    expected = np.polynomial.polynomial.polyvander(x, degree)
    np.testing.assert_allclose(Polynomial(degree)(x), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Polynomial(-1), "degree must be a whole number >= 0, got -1"),
        (lambda: Polynomial(2.0), "degree must be a whole number"),
        (lambda: Polynomial(1)(np.ones((2, 2))), r"shape \(s,\), got \(2, 2\)"),
        (lambda: Polynomial(1)(np.array([1, np.nan])), "1 of 2 are not"),
    ],
)
def test_a_basis_says_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# the closed form


def test_a_polynomial_fit_is_numpys(random):
    x, y = random.uniform(-1, 1, 40), random.standard_normal(40)
    expected = np.polynomial.Polynomial.fit(x, y, 6).convert().coef
    curve = fit(Polynomial(6), x, y)
    np.testing.assert_allclose(curve.parameters, expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(curve(x[:5]), np.polyval(expected[::-1], x[:5]), rtol=1e-9)


def test_any_linear_basis_fits_as_in_scipy(random):
    """A basis is any function to a design matrix: here sines and cosines."""

    def basis(x):
        return np.stack([np.ones_like(x), np.sin(2 * x), np.cos(2 * x), np.sin(4 * x)], axis=1)

    x, y = random.uniform(-1, 1, 40), random.standard_normal(40)
    expected = scipy.linalg.lstsq(basis(x), y)[0]
    np.testing.assert_allclose(fit(basis, x, y).parameters, expected, rtol=1e-8, atol=1e-10)


def test_qr_keeps_the_digits():
    A = np.polynomial.polynomial.polyvander(np.linspace(0, 1, 60), 9)
    off = np.abs(foundations.solve_qr(A, A @ np.ones(10)) - 1).max()
    assert off < 10 * np.finfo(float).eps * np.linalg.cond(A)


@pytest.mark.parametrize(
    ("basis", "x", "message"),
    [
        (Polynomial(3), np.arange(3.0), "3 samples cannot determine 4 parameters"),
        (Polynomial(2), np.array([1.0, 1, 2, 2]), "the 3 columns depend on one another"),
        (Polynomial(30), np.linspace(0, 1, 100), "the 31 columns depend on one another"),
        (lambda x: np.zeros((len(x), 2)), np.arange(3.0), "the 2 columns depend on one another"),
        (Polynomial(400), np.linspace(0, 9, 500), "must be finite; is x scaled"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_samples_that_do_not_determine_the_curve(basis, x, message):
    with pytest.raises(ValueError, match=message):
        fit(basis, x, np.ones_like(x))


# the loss


def test_loss_gradient_and_hessian_of_a_line_by_hand():
    # Samples (0, 1), (2, 2); w = (0, 1) predicts 0 and 2, so the residuals are -1 and 0.
    loss = LeastSquares.of(Polynomial(1), np.array([0.0, 2.0]), np.array([1.0, 2.0]))
    w = np.array([0.0, 1.0])
    assert loss(w) == 0.5
    np.testing.assert_array_equal(loss.gradient(w), [-1, 0])
    np.testing.assert_array_equal(loss.gradient(w, np.array([0])), [-2, 0])
    np.testing.assert_array_equal(loss.gradient(w, np.array([1])), [0, 0])
    np.testing.assert_array_equal(loss.hessian(), [[2, 2], [2, 4]])


def test_gradient_is_the_slope_of_the_loss(random):
    loss, w = bowl(random), random.standard_normal(3)
    numeric = scipy.optimize.approx_fprime(w, loss, 1e-7)
    np.testing.assert_allclose(loss.gradient(w), numeric, rtol=1e-5, atol=1e-5)
    for axis in np.eye(3):  # the gradient of a bowl is linear: no small step is needed
        slope = loss.gradient(w + axis) - loss.gradient(w)
        np.testing.assert_allclose(slope, loss.hessian() @ axis, atol=1e-12)


def test_gradients_of_shares_weighted_by_samples_make_the_whole(random):
    loss, w = bowl(random), random.standard_normal(3)
    shares = np.split(random.permutation(23), [4, 11])
    together = sum(len(rows) / 23 * loss.gradient(w, rows) for rows in shares)
    np.testing.assert_allclose(together, loss.gradient(w), atol=1e-13)


def test_no_nearby_parameters_have_less_loss_than_the_minimiser(random):
    loss = bowl(random)
    best = loss.minimiser()
    expected = scipy.optimize.minimize(loss, np.zeros(3), jac=loss.gradient, tol=1e-12)
    np.testing.assert_allclose(best, expected.x, atol=1e-6)
    for _ in range(20):
        assert loss(best + 1e-3 * random.standard_normal(3)) > loss(best)


@pytest.mark.parametrize(
    ("design", "targets", "message"),
    [
        (np.ones((3, 2)), np.ones(4), r"s = 4 targets, got \(3, 2\)"),
        (np.ones(3), np.ones(3), r"got \(3,\)"),
        (np.ones((0, 2)), np.ones(0), "at least 1 sample"),
        (np.full((2, 1), np.inf), np.ones(2), "design matrix must be finite"),
        (np.ones((2, 1)), np.array([1, np.nan]), "1 of 2 are not"),
    ],
)
def test_a_loss_says_what_is_wrong(design, targets, message):
    with pytest.raises(ValueError, match=message):
        LeastSquares(design, targets)
