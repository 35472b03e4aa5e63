"""Samplers: a Gaussian process against its equations and scikit-learn, the rest on functions."""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks.problems import bbob, mixed
from tutorial_dl.tuning import gaussian_process as gp
from tutorial_dl.tuning import problems, samplers
from tutorial_dl.tuning.bayesian import Bayesian, levelled
from tutorial_dl.tuning.evolutionary import Evolutionary
from tutorial_dl.tuning.proposing import Seen
from tutorial_dl.tuning.space import Space

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.random((20, 3)), RANDOM.standard_normal(20)
HYPER = np.log([0.3, 0.5, 2.0, 1.7, 0.01])
SPACE = Space.of(
    {
        "x": {"type": "float", "low": -1.0, "high": 2.0},
        "n": {"type": "int", "low": 1, "high": 4},
        "c": {"type": "category", "choices": ["a", "b"]},
        "y": {"type": "float", "low": 0.0, "high": 1.0, "when": {"c": "b"}},
    }
)


def scikit_learns():
    kernel = ConstantKernel(1.7) * Matern(length_scale=[0.3, 0.5, 2.0], nu=2.5)
    noise = 0.01 + gp.LOWEST_NOISE
    return GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(X, Y)


def test_mean_and_variance_are_those_of_scikit_learn():
    points = RANDOM.random((7, 3))
    mean, variance = gp.Process(X, Y, HYPER).at(points)
    theirs, deviation = scikit_learns().predict(points, return_std=True)
    np.testing.assert_allclose(mean, theirs, rtol=1e-9)
    np.testing.assert_allclose(variance, deviation**2, rtol=1e-7)


def test_likelihood_is_that_of_scikit_learn_times_the_prior():
    theirs = scikit_learns()
    off = HYPER - [*[gp.center(3)] * 3, 0, gp.NOISE[0]]
    prior = 0.5 * ((off / [gp.SPREAD] * 1) ** 2)[:4].sum() + 0.5 * (off[4] / gp.NOISE[1]) ** 2
    expected = -theirs.log_marginal_likelihood_value_ - 10 * np.log(2 * np.pi) + prior
    assert gp.loss_and_gradient(HYPER, X, Y)[0] == pytest.approx(expected, rel=1e-9)


# A number, a category of three choices, another number
MIXED, MIXED_X = [1, 3, 1], RANDOM.random((20, 5))
MIXED_X[:, 1:4] = np.eye(3)[RANDOM.integers(3, size=20)]


def test_categories_are_apart_by_hamming_s_distance():
    """The kernel between rows, by hand: |difference| of numbers, 0 or 1 of categories."""
    process = gp.Process(MIXED_X, Y, HYPER, MIXED)
    distance = np.abs(MIXED_X[:, None] - MIXED_X)[..., [0, 1, 4]]
    distance[..., 1] = MIXED_X[:, None, 1:4].argmax(-1) != MIXED_X[:, 1:4].argmax(-1)
    r = np.sqrt(5) * np.sqrt(((distance / [0.3, 0.5, 2.0]) ** 2).sum(-1))
    kernel = 1.7 * (1 + r + r * r / 3) * np.exp(-r)
    weights = np.linalg.solve(kernel + (0.01 + gp.LOWEST_NOISE) * np.eye(20), Y)
    np.testing.assert_allclose(process.at(MIXED_X)[0], kernel @ weights, rtol=1e-6, atol=1e-9)
    believing = process.believing(MIXED_X[:2])
    np.testing.assert_allclose(believing.x[:20], process.x)


@pytest.mark.parametrize(("x", "columns"), [(X, None), (MIXED_X, MIXED)])
def test_slopes_of_the_likelihood_are_those_of_differences(x, columns):
    def loss(vector):
        return gp.loss_and_gradient(vector, x, Y, columns)[0]

    slope = approx_fprime(HYPER, loss, 1e-7)
    np.testing.assert_allclose(gp.loss_and_gradient(HYPER, x, Y, columns)[1], slope, atol=1e-4)


def test_slopes_of_the_process_are_those_of_differences():
    process, point = gp.Process(X, Y, HYPER), np.array([0.3, 0.8, 0.1])
    mean, variance, mean_slope, variance_slope = process.at_with_slopes(point)
    assert (mean, variance) == pytest.approx([one[0] for one in process.at(point[None])])
    for slope, which in ((mean_slope, 0), (variance_slope, 1)):
        expected = approx_fprime(point, lambda p, w=which: process.at(p[None])[w][0], 1e-7)
        np.testing.assert_allclose(slope, expected, atol=1e-5)


def test_expected_improvement_is_the_mean_over_draws():
    z = np.array([-3.0, -1.01, -0.99, 0.0, 2.0])
    np.testing.assert_allclose(np.exp(gp.log_improvement(z)), z * norm.cdf(z) + norm.pdf(z))
    # far below: phi(z) / z^2
    far = gp.log_improvement(np.array([-50.0, -1e5]))
    np.testing.assert_allclose(far, norm.logpdf([-50, -1e5]) - 2 * np.log([50, 1e5]), rtol=1e-3)
    draws = np.maximum(0, 0.2 - (0.5 + 0.7 * RANDOM.standard_normal(400_000))).mean()
    assert np.exp(gp.log_expected_improvement(0.5, 0.49, 0.2)) == pytest.approx(draws, rel=0.02)


def test_a_pending_trial_leaves_the_mean_and_makes_its_place_known():
    process, pending = gp.Process(X, Y, HYPER), np.array([[0.9, 0.1, 0.5]])
    believing, points = process.believing(pending), RANDOM.random((5, 3))
    np.testing.assert_allclose(believing.at(points)[0], process.at(points)[0], rtol=1e-6)
    assert believing.at(pending)[1][0] < 0.02 < process.at(pending)[1][0]


def test_levelled_values_keep_their_order():
    values = np.array([1.0, 1e6, 2.0, 3.0, 2.5, 1e3])
    y = levelled(values)
    assert (np.argsort(y) == np.argsort(values)).all()
    assert y.mean() == pytest.approx(0, abs=1e-9) and y.std() == pytest.approx(1)
    assert not levelled(np.full(4, 7.0)).any()


def test_a_choice_uses_one_thread_of_blas(monkeypatch):
    threads, sampler = [], Bayesian(problems.cube(2, 0.0, 1.0), 0)

    def highest(*_):
        threads.extend(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")
        return {}

    monkeypatch.setattr(sampler, "_highest", highest)
    with threadpool_limits(2, "blas"):
        sampler.propose(Seen(RANDOM.random((20, 2)), Y, np.zeros(20, bool), np.empty((0, 2))))
        assert {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"} == {2}
    assert threads and set(threads) == {1}


# Any sampler -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", samplers.NAMES)
def test_suggestions_lie_in_the_space_and_survive_failures(name):
    """A third of the trials fail, or have no number; some stay in training. Higher is better."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=samplers.get(name, SPACE, seed=1), direction="maximize")
    for number in range(40):
        trial = study.ask()
        values = SPACE.suggest(trial)
        assert -1 <= values["x"] <= 2 and values["n"] in range(1, 5) and values["c"] in "ab"
        assert ("y" in values) == (values["c"] == "b")
        if number % 6 == 1:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        elif number % 6 == 2:
            study.tell(trial, float("nan"))
        elif number % 6 != 3:
            study.tell(trial, -((values["x"] - 1) ** 2) - (values["n"] - 2) ** 2)
    assert len(study.trials) == 40


def test_a_grid_is_tried_once():
    study = optuna.create_study(sampler=samplers.get("grid", SPACE))
    size, seen = len(SPACE.grid(samplers.GRID_POINTS)), set()
    for _ in range(size):  # all of them are in training
        seen.add(tuple(SPACE.suggest(study.ask()).items()))
    assert len(seen) == size == 5 * 4 * (1 + 5)


def test_trials_at_once_differ():
    """Eight suggestions without a result between them are eight places."""
    space = problems.cube(2, 0.0, 1.0)
    for name in ("bayesian", "evolutionary", "tpe"):
        study = optuna.create_study(sampler=samplers.get(name, space, seed=0))
        for _ in range(25):
            trial = study.ask()
            x = space.suggest(trial)
            study.tell(trial, (x["x0"] - 0.3) ** 2 + (x["x1"] - 0.6) ** 2)
        at_once = [tuple(space.suggest(study.ask()).values()) for _ in range(8)]
        apart = [np.hypot(*np.subtract(a, b)) for a in at_once for b in at_once if a is not b]
        assert min(apart) > 1e-3, name


def test_the_same_seed_gives_the_same_suggestions():
    for name in ("bayesian", "evolutionary"):
        runs = [problems.search(problems.branin(), name, 25, seed=3)[0] for _ in range(2)]
        assert runs[0] == runs[1]


# The evolutionary algorithm -----------------------------------------------------------------------


def test_the_population_is_constant_and_the_worst_leaves():
    sampler = Evolutionary(SPACE, 0)
    sampler.population = 5
    values = np.array([5.0, 1.0, 9.0, 9.0, 3.0, 2.0, 4.0])
    failed = np.array([False, False, True, False, False, False, False])
    rows = RANDOM.random((7, SPACE.columns))
    members = sampler.members(Seen(rows, values, failed, rows[:0]))
    assert list(members) == [1, 5, 4, 6, 0]
    few = Seen(rows[:3], values[:3], failed[:3], rows[:0])
    assert list(sampler.members(few)) == [1, 0, 2]  # the failed one comes last


def test_the_fitter_of_two_is_a_parent():
    """By hand, for 4 members and one more ticket of the first: pairs of 5 tickets."""
    sampler = Evolutionary(SPACE, 0)
    drawn = np.bincount([sampler.tournament(4) for _ in range(8000)], minlength=4) / 8000
    # 10 pairs: 7 have a ticket of member 0, 2 of the other three have member 1, 1 has 2 and 3
    np.testing.assert_allclose(drawn, [0.7, 0.2, 0.1, 0], atol=0.03)


def test_children_lie_in_the_cube_and_take_after_their_parents():
    sampler = Evolutionary(SPACE, 0)
    rows = np.tile(SPACE.encode({"x": 0.5, "n": 2, "c": "b", "y": 0.2}), (6, 1))
    children = np.array([sampler.space.snapped(sampler.child(rows)[None])[0] for _ in range(400)])
    assert (children >= 0).all() and (children <= 1).all()
    same = (children[:, 0] == rows[0, 0]).mean()
    assert 0.6 < same < 0.85  # of four parameters, one changes on average, or one at least


# On functions that we did not write ------------------------------------------------------------


def test_minima_are_those_of_the_literature():
    branin = problems.branin()
    for a, b in ((-np.pi, 12.275), (np.pi, 2.275), (9.42478, 2.475)):
        assert branin.value({"a": a, "b": b}) == pytest.approx(branin.lowest, abs=1e-5)
    hartmann = problems.hartmann()
    at = [0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]
    values = {f"x{i}": x for i, x in enumerate(at)}
    assert hartmann.value(values) == pytest.approx(hartmann.lowest, abs=1e-5)


def test_bbob_is_never_below_its_minimum():
    for function in (1, 8, 15, 21, 24):
        problem = bbob(function, 2, 2)
        drawn = [problem.value(problem.space.random(RANDOM)) for _ in range(200)]
        assert min(drawn) >= problem.lowest - 1e-9


@pytest.mark.thorough
def test_bayesian_beats_random():
    """On five of BBOB's functions and the mixed space: the whole suite is benchmarks/regret.py."""
    won = 0
    for problem in [*(bbob(f, 1, 5) for f in (1, 6, 8, 10, 14)), mixed()]:
        best = {n: problems.search(problem, n, 28, seed=1)[0][-1] for n in ("random", "bayesian")}
        won += best["bayesian"] < best["random"]
    assert won >= 5


NUMBERS_AND_CHOICES = Space.of(
    {
        "x": {"type": "float", "low": 0.0, "high": 1.0},
        "n": {"type": "int", "low": 1, "high": 12},
        "c": {"type": "category", "choices": ["a", "b", "d"]},
    }
)


@pytest.mark.parametrize("seed", range(4))
def test_the_acquisition_is_as_high_as_by_brute_force(seed):
    """Every choice and whole number, with 200 numbers each."""
    space, random = NUMBERS_AND_CHOICES, np.random.default_rng(seed)
    rows = np.array([space.encode(space.random(random)) for _ in range(15)])
    values = np.sin(9 * rows[:, 0] + 2 * rows[:, 1]) + random.random(3)[rows[:, 2:].argmax(1)]
    sampler = Bayesian(space, seed)
    sampler.hyper = np.log([0.2, 0.4, 1.0, 1.0, 1e-4])
    process = gp.Process(rows, values, sampler.hyper, sampler.sizes)
    seen = Seen(rows, values, np.zeros(15, bool), rows[:0])
    found = space.encode(sampler._highest(process, values.min(), seen))
    everything = np.array(
        [
            space.encode({"x": x, "n": n, "c": c})
            for x in np.linspace(0, 1, 200)
            for n in range(1, 13)
            for c in "abd"
        ]
    )
    scores = sampler._score(process, np.concatenate([found[None], everything]), values.min())
    assert scores[0] >= scores[1:].max() - 0.02  # of a logarithm


def test_sets_keep_a_distance_that_grows_with_the_noise(monkeypatch):
    """The process takes ripples for noise; it must not try the lowest mean again and again."""
    space = problems.cube(1, 0.0, 1.0)
    hyper = np.log([0.5, 1.0, 0.25])
    monkeypatch.setattr(Bayesian, "_fit", lambda self, *_: setattr(self, "hyper", hyper))
    sampler = Bayesian(space, 0)
    x = np.linspace(0, 1, 6)
    for _ in range(12):
        values = (x - 0.4) ** 2 + 0.1 * np.sin(400 * x)
        rows = x[:, None]
        new = sampler.propose(Seen(rows, values, np.zeros(len(x), bool), rows[:0]))["x0"]
        # 0.1 times 0.5, or less where so many sets leave no room for it
        assert np.abs(x - new).min() > min(0.049, 0.24 / len(x))
        x = np.append(x, new)
