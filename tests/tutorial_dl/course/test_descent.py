"""Descent against closed forms and scipy."""

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.stats
from bowls import bowl

from tutorial_dl.course import foundations
from tutorial_dl.course.foundations import LeastSquares, descend


@pytest.fixture
def random():
    return np.random.default_rng(11)


# full-batch descent


def test_the_error_shrinks_by_its_own_factor_along_each_eigenvector(random):
    loss, start = bowl(random), random.standard_normal(3)
    curvatures, V = scipy.linalg.eigh(2 / 23 * loss.design.T @ loss.design)
    eta = 1.7 / curvatures[-1]  # the direction of largest curvature overshoots at every step
    run = descend(loss, start, eta, epochs=40, gradient_tolerance=None)
    minimiser = scipy.linalg.lstsq(loss.design, loss.targets)[0]
    errors = (run.path - minimiser) @ V  # (41, 3)
    factors = (1 - eta * curvatures) ** np.arange(41)[:, None]
    np.testing.assert_allclose(errors, errors[0] * factors, atol=1e-13)


def test_two_over_the_largest_curvature_is_where_it_turns(random):
    loss, start = bowl(random), random.standard_normal(3)
    bound = 2 / scipy.linalg.eigvalsh(loss.hessian())[-1]
    assert descend(loss, start, 0.99 * bound, epochs=10_000).ended_by == "gradient norm"
    above = descend(loss, start, 1.01 * bound, epochs=10_000)
    assert above.ended_by == "divergence" and not above.converged
    assert above.losses[-1] > 1e12 * above.losses[0]
    assert "diverged: loss" in above.reason


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("batch_size", "loss_is"), [(8, np.isposinf), (1, np.isnan)])
def test_overflow_is_divergence_without_a_warning(batch_size, loss_is):
    loss = LeastSquares(np.ones((8, 1)), np.ones(8))
    with np.errstate(all="raise"):
        run = descend(loss, np.zeros(1), 1e200, batch_size=batch_size, epochs=10)
    assert (run.ended_by, run.epochs) == ("divergence", 1)
    assert loss_is(run.losses[-1])


# the convergence test


def test_gradient_norm_ends_it_at_the_first_epoch_that_meets_it(random):
    loss, start = bowl(random), np.zeros(3)
    run = descend(loss, start, 0.2, gradient_tolerance=1e-5)
    assert run.ended_by == "gradient norm" and run.converged
    assert run.gradient_norms[-1] <= 1e-5 < run.gradient_norms[-2]
    slope = 2 / 23 * loss.design.T @ (loss.design @ run.parameters - loss.targets)
    assert run.gradient_norms[-1] == pytest.approx(np.linalg.norm(slope), rel=1e-9)
    assert run.reason.startswith("converged: gradient norm") and "<= 1e-05 after" in run.reason
    assert f"after {run.steps} steps" in run.reason


def test_without_arrival_the_epochs_end_it(random):
    run = descend(bowl(random), np.ones(3), 1e-3, epochs=7)
    assert (run.ended_by, run.epochs, run.steps) == ("epochs", 7, 7)
    assert not run.converged and run.reason.startswith("not converged: 7 epochs used up")


def test_at_the_minimum_no_step_is_taken(random):
    loss = bowl(random)
    run = descend(loss, loss.minimiser(), 0.1)
    assert (run.ended_by, run.steps, run.epochs) == ("gradient norm", 0, 0)


def test_history_holds_the_full_loss_of_every_epoch(random):
    loss = bowl(random)
    run = descend(loss, np.ones(3), 0.02, batch_size=5, epochs=4, gradient_tolerance=None)
    assert (run.steps_per_epoch, run.samples_per_epoch, run.steps) == (5, 23, 20)  # 5 5 5 5 3
    ends = run.path[::5]
    residuals = ends @ loss.design.T - loss.targets  # (5, 23)
    np.testing.assert_allclose(run.losses, (residuals**2).mean(axis=1), rtol=1e-12)


# batches


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5])
def test_every_sample_counts_once_an_epoch_and_the_last_batch_is_averaged_over_itself(batch_size):
    # Sample i concerns parameter i alone, so a batch of b scales b parameters by 1 - 2 eta / b.
    loss, eta, epochs = LeastSquares(np.eye(5), np.zeros(5)), 0.1, 6
    run = descend(
        loss, np.ones(5), eta, batch_size=batch_size, epochs=epochs, gradient_tolerance=None
    )
    last = 5 % batch_size or batch_size
    ragged = last if last != batch_size else 0
    an_epoch = (1 - 2 * eta / batch_size) ** (5 - ragged)
    if ragged:
        an_epoch *= (1 - 2 * eta / ragged) ** ragged
    assert np.prod(run.parameters) == pytest.approx(an_epoch**epochs, rel=1e-12)
    ends = run.path[:: run.steps_per_epoch]
    assert np.all(ends[1:] < ends[:-1])  # each parameter moved in each epoch


def test_batches_come_from_the_seed_and_change_with_the_epoch():
    loss = LeastSquares(np.eye(6), np.zeros(6))

    def order(seed):
        """The samples in the order of the steps, (2, 6): the parameter that each step moved."""
        run = descend(
            loss, np.ones(6), 0.1, batch_size=1, epochs=2, gradient_tolerance=None, seed=seed
        )
        return np.abs(np.diff(run.path, axis=0)).argmax(axis=1).reshape(2, 6)

    np.testing.assert_array_equal(order(seed=3), order(seed=3))
    assert not np.array_equal(order(seed=3), order(seed=4))
    assert not np.array_equal(*order(seed=3))
    np.testing.assert_array_equal(np.sort(order(seed=3)), [np.arange(6)] * 2)


def test_a_batch_of_all_samples_is_the_full_batch_for_any_seed(random):
    loss = bowl(random)
    whole = descend(loss, np.ones(3), 0.1, epochs=5)
    for seed in (0, 1):
        again = descend(loss, np.ones(3), 0.1, batch_size=23, epochs=5, seed=seed)
        np.testing.assert_array_equal(again.path, whole.path)


def test_learning_rate_may_depend_on_the_step():
    loss = LeastSquares(np.eye(2), np.zeros(2))
    seen = []

    def rate(step):
        seen.append(step)
        return 1 / (step + 3)

    descend(loss, np.ones(2), rate, batch_size=1, epochs=2, gradient_tolerance=None)
    assert seen == [0, 1, 2, 3]
    # L = w^2: step t multiplies w by 1 - 2 eta = (t + 1) / (t + 3).
    bowl = LeastSquares(np.ones((1, 1)), np.zeros(1))
    run = descend(bowl, np.ones(1), lambda t: 1 / (t + 3), epochs=4, gradient_tolerance=None)
    np.testing.assert_allclose(run.path[:, 0], [1, 1 / 3, 1 / 6, 1 / 10, 1 / 15], rtol=1e-12)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"start": np.ones(2)}, r"start must have shape \(3,\), got \(2,\)"),
        ({"batch_size": 0}, "batch_size must be 1 to 23, got 0"),
        ({"batch_size": 24}, "batch_size must be 1 to 23, got 24"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"learning_rate": 0}, "learning_rate must be > 0, got 0 at step 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be > 0, got nan"),
        ({"learning_rate": lambda t: 1 - t}, "learning_rate must be > 0, got 0 at step 1"),
        ({"gradient_tolerance": -1}, "gradient_tolerance must be >= 0 or None, got -1"),
    ],
)
def test_descend_says_what_is_wrong(random, changed, message):
    arguments = {"start": np.ones(3), "learning_rate": 0.1} | changed
    with pytest.raises(ValueError, match=message):
        descend(bowl(random), **arguments)


# curvature


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_the_largest_curvature_of_a_quadratic(random, n):
    """H is any symmetric matrix, also with negative eigenvalues of the same size."""
    H = random.standard_normal((n, n))
    H = H + H.T
    where = random.standard_normal(n)
    found = foundations.largest_curvature(lambda w: H @ w + 1, where, products=n)
    assert found == pytest.approx(np.linalg.eigvalsh(H)[-1], rel=1e-6)
    few = [foundations.largest_curvature(lambda w: H @ w, where, products=k) for k in range(1, n)]
    assert all(one <= found + 1e-6 for one in few)  # from below


def test_a_curvature_far_above_the_others_takes_few_products(random):
    Q = np.linalg.qr(random.standard_normal((500, 500)))[0]
    values = np.append(50.0, random.uniform(-5, 5, 499))
    H = (Q * values) @ Q.T
    asked = []

    def gradient(w):
        asked.append(w)
        return H @ w

    found = foundations.largest_curvature(gradient, np.zeros(500), products=12)
    assert found == pytest.approx(50, rel=1e-3) and len(asked) == 24


def test_the_largest_curvature_is_that_of_the_place(random):
    """The loss sum w^4 / 12 is not a parabola: its curvatures are w^2."""
    where = np.array([0.5, -2.0, 1.0])
    found = foundations.largest_curvature(lambda w: w**3 / 3, where, products=3)
    assert found == pytest.approx(4, rel=1e-6)
    assert where.tolist() == [0.5, -2.0, 1.0]


def test_curvatures_that_are_all_the_same_or_none():
    assert foundations.largest_curvature(lambda w: 3 * w, np.ones(9)) == pytest.approx(3)
    assert foundations.largest_curvature(lambda w: 0 * w, np.ones(9)) == 0
    assert foundations.largest_curvature(lambda w: -2 * w, np.ones(1)) == pytest.approx(-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"products": 0}, "products must be at least 1, got 0"), ({"step": 0.0}, "step .* got 0.0")],
)
def test_curvature_of_nothing(options, message):
    with pytest.raises(ValueError, match=message):
        foundations.largest_curvature(lambda w: w, np.ones(2), **options)
