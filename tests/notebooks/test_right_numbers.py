"""Right answers are those of formulas, of simulations and of runs."""

import json
import subprocess
import sys

import numpy as np
import pytest
from exercise_cells import run
from notebook_cells import Notebook

from numba_kernels.optimizers import SGD
from tutorial_dl.course import foundations
from tutorial_dl.course.exercises import (
    check,
    notebook_01,
    notebook_09,
    notebook_11,
    notebook_26,
)
from tutorial_dl.data import curve
from tutorial_dl.model_parallel import Positions
from tutorial_dl.model_parallel.zero import formulas
from tutorial_dl.replica import LayeredReplica
from tutorial_dl.replica.layers import Dense
from tutorial_dl.strategies import GradientEnergyMatching, Scripted
from tutorial_dl.strategies.downpour import Downpour
from tutorial_dl.tuning import simulation
from tutorial_dl.tuning.coordinator import Coordinator
from tutorial_dl.tuning.leader import Leader
from tutorial_dl.tuning.problems import branin
from tutorial_dl.tuning.study import Study


def solved(exercise: str) -> dict:
    """The names that the folded solution defines."""
    return run(Notebook(exercise[:2]).solution_of(exercise), {"np": np})


def test_01_the_degree_is_that_of_fits_to_new_noise():
    random = np.random.default_rng(0)
    x, elsewhere = (curve(n, seed=seed).train.inputs for n, seed in ((100, 2), (1000, 1)))
    errors = np.zeros((13, 300))
    for draw in range(300):
        y = np.sin(np.pi * x) + 0.2 * random.standard_normal(100)
        for degree in range(13):
            fitted = np.polynomial.Polynomial.fit(x, y, degree)
            errors[degree, draw] = np.mean((fitted(elsewhere) - np.sin(np.pi * elsewhere)) ** 2)
    expected = [dict(enumerate(notebook_01._expected(d, x, elsewhere, 0.2)))[1] for d in range(13)]
    np.testing.assert_allclose(errors.mean(axis=1) + 0.04, expected, rtol=0.01)
    assert np.argmin(expected) == errors.mean(axis=1).argmin() == 5


# Communication ---------------------------------------------------------------------------------


def test_32_the_crossover_is_where_both_formulas_agree():
    n, alpha, beta, p = solved("32.crossover")["ring_wins"], 2e-6, 1 / 10e9, 16
    tree = 2 * 4 * alpha + 2 * 4 * n * beta  # 16 = 2^4
    ring = 2 * (p - 1) * alpha + 2 * n * (p - 1) / p * beta
    assert tree == pytest.approx(ring, rel=1e-9)


def test_06_the_times_of_a_step_are_those_by_hand(capsys):
    """0.4 + 5.12/4 + 0.2/4 + 0.4 x 4 ms, 0.4 + 5.32 ms, 0.4 + 5.32/8 + 0.4 x 8 ms."""
    check("06.ranks", (4, 5.72 / 3.33))
    said = capsys.readouterr().out
    assert said.startswith("correct: a step on 4 ranks takes 3.33 ms, on one 5.72, on 8 4.2")


@pytest.mark.parametrize("momentum", [0.0, 0.5, notebook_09.MOMENTUM])
def test_09_the_limit_is_where_descent_turns_unstable(momentum):
    """The optimizer itself turns unstable on a parabola at 2 (1 + mu) / lambda, within 1%."""
    limit = 2 * (1 + momentum) / notebook_09.CURVATURE

    def error_left(rate):
        w, sgd = np.ones(1), SGD(rate, momentum=momentum)
        state = sgd.init(1, np.float64)
        for _ in range(3000):
            sgd.update(w, notebook_09.CURVATURE * w, state)
        return abs(w[0])

    assert error_left(0.99 * limit) < 1e-3 < 1e3 < error_left(1.01 * limit)


def test_34_the_mean_of_the_ranks_areas_is_far_off():
    """The ranks' scores must differ enough, or the exercise would show nothing."""
    from sklearn.metrics import roc_auc_score

    from tutorial_dl.course.exercises.notebook_34 import _by_pairs, _scores

    for ranks in (2, 3, 4):
        shares = [share for share in (_scores(r, ranks) for r in range(ranks)) if len(share[0])]
        of_ranks = [roc_auc_score(labels, scores) for scores, labels in shares]
        scores, labels = np.concatenate(shares, axis=1)
        assert np.isclose(_by_pairs(scores, labels), roc_auc_score(labels, scores))
        if len(shares) > 1:
            assert abs(np.mean(of_ranks) - roc_auc_score(labels, scores)) > 0.02


# Masters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 4, 5, 9])
def test_11_seconds_to_an_answer_are_those_of_the_queue(workers):
    """Simulate every exchange; count the second half, when the workers have found an order."""
    for compute, serve in ((0.030, 0.010), (0.004, 0.010), (0.0, 0.010)):
        times = np.full((workers, 200), compute), np.full(600, serve)
        _, asked, _, done = foundations.first_come_first_served(*times)[-5 * workers :].T
        assert np.allclose(done - asked, notebook_11._answer(workers, compute, serve))


def test_11_the_plan_by_hand():
    """100 MB at 1.25 GB/s take 80 ms each way; 16 x 160 ms fit into 10 gradients and one more."""
    assert check("11.plan", (1 + 250 / 160, 10)) is True
    assert 9 * 250 + 160 < 16 * 160 <= 10 * 250 + 160


WITHOUT_A_CLUSTER = """
import json, sys
for cell in json.loads(sys.stdin.read()):
    exec(cell)
assert "mpi4py.MPI" not in sys.modules
"""


def test_11_the_notebooks_own_process_starts_no_mpi():
    """Run its cells up to the start of the cluster; MPI runs on the engines only."""
    code = Notebook("11").cells("code")
    first = next(number for number, cell in enumerate(code) if "cluster.start" in cell)
    assert first >= 2
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_CLUSTER], input=json.dumps(code[:first]),
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("rate", "aware", "most"), [(0.05, False, 6), (0.35, True, 4)])
def test_12_the_right_numbers_are_those_of_runs(rate, aware, most):
    """With the ranks' own rule and h = 5, `most` workers converge, and one more diverges."""
    ends = []
    for workers in (most, most + 1):
        run = Scripted(Downpour(staleness_aware=aware), lambda x: 5 * x, [1.0], workers, SGD(rate))
        x = run.turns(t % workers for t in range(8000))
        ends.append(np.abs(x[-50:]).max())
    assert ends[0] < 1e-2 < 1e2 < ends[1]


@pytest.mark.parametrize(("workers", "kappa", "pace"), [(8, 9 / 8, 1.0), (1, 100.0, 0.5)])
def test_14_the_right_paces_are_those_of_the_rule(workers, kappa, pace):
    rule = GradientEnergyMatching(kappa, 0.9)
    x = Scripted(rule, lambda x: 1 + 0 * x, [0.0], workers, SGD(0.1)).turns(
        t % workers for t in range(200 * workers)
    )
    way = (x[-1 - 100 * workers] - x[-1]) / 100  # per round; eta / (1 - mu) is 1
    assert way == pytest.approx(pace, rel=2e-3)


def test_14_the_solution_is_the_rule_itself():
    """Both agree along a whole path, also where pi is clipped below or above."""
    commit = solved("14.commit")["commit"]
    h = np.array([1.0, 9.0, 0.1])
    rule = GradientEnergyMatching(1.5, 0.8)
    scripted = Scripted(rule, lambda x: h * x, [1.0, -1.0, 2.0], 2, SGD(0.1))
    m, s = np.zeros((2, 3)), np.ones((2, 3)) * scripted.center
    for turn in range(20):
        worker, theta = turn % 2, scripted.center.copy()
        g = h * scripted.worker(worker)
        moved, m[worker] = commit(g, m[worker], theta, s[worker], 0.1, 0.8, 1.5)
        s[worker] = theta
        scripted.turn(worker)
        assert np.allclose(scripted.center, theta + moved, atol=1e-12)


# Models that ranks divide ----------------------------------------------------------------------


def test_16_both_ways_reduce_equally_many_numbers_there():
    layers = [Dense("first", 1024, 4096), Dense("second", 4096, 1024)]
    biases = 4096 + 1024
    gradient = LayeredReplica(layers, "mse").gradient.size - biases
    assert (
        2 * solved("16.batch")["samples"] * 1024 == gradient
    )  # forward and backward, (s, 1024) each


def test_18_the_right_numbers_of_ranks():
    def needs(ranks, stage):
        return sum(formulas(1_500_000_000, ranks, stage).values())

    assert needs(5, 2) <= 10e9 < needs(4, 2)
    assert needs(3, 3) <= 10e9 < needs(2, 3)
    assert needs(10**9, 1) > 10e9


def test_18_zigzag_is_as_much_faster_as_the_text_says():
    for ranks in (2, 4, 7):
        work = {}
        for order in ("in order", "zigzag"):
            positions = Positions(4 * ranks, ranks, order)
            size = 4 * ranks // len(positions.edges[1:])  # of a piece
            work[order] = [
                size**2 * sum(len(positions.pairs(r, other, True)) for other in range(ranks))
                for r in range(ranks)
            ]
        assert len(set(work["zigzag"])) == 1
        assert max(work["in order"]) / max(work["zigzag"]) == 4 * ranks / (2 * ranks + 1)


# Search ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["at once", "in turn"])
def test_20_the_duel_follows_its_matrix(way):
    rate, penalty = 0.3, 0.2
    path = foundations.duel((1e-5, 2e-5), rate, 6, way, penalty)
    expected = np.linalg.matrix_power(foundations.duel_matrix(rate, way, penalty), 6) @ path[0]
    np.testing.assert_allclose(path[-1], expected, rtol=1e-8)
    assert foundations.duel_factor(rate, "at once") == pytest.approx(np.sqrt(1 + rate**2 / 4))
    assert foundations.duel_factor(rate, "in turn") == pytest.approx(1)
    with pytest.raises(ValueError, match=r'way must be "at once" or "in turn", got .both'):
        foundations.duel((1, 0), rate, 1, "both")


def test_23_the_expected_improvement_is_a_mean_over_draws():
    draws = np.random.default_rng(0).standard_normal(4_000_000)
    m, s, b = 0.5, 0.3, 0.4
    right = solved("23.improvement")["improvement"](m, s, b)
    assert np.maximum(0, b - (m + s * draws)).mean() == pytest.approx(right, rel=5e-3)


def test_24_the_right_chance_is_that_of_draws():
    random = np.random.default_rng(0)
    winners = np.array([random.choice(20, 2, replace=False).min() for _ in range(40_000)])
    assert (winners < 10).mean() == pytest.approx(1 - 10 / 20 * 9 / 19, abs=0.01)


class Slow(simulation.SimulatedPort):
    """A port whose clock goes on by 0.3 s with each set that is handed out, as if it chose it."""

    def send(self, cell, message):
        if message["what"] == "train":
            self.time += 0.3
        super().send(cell, message)


def searched(port, leaders, trials):
    """The outcome of a random search on these groups."""
    study = Study(branin().space, "random", trials, seed=0)
    return Coordinator(study, port, len(leaders)).run()


def leaders_of(groups):
    return [Leader(branin().space, "random", 0, group) for group in range(groups)]


@pytest.mark.parametrize(("groups", "busy"), [(8, 1.0), (15, 1.0), (30, 0.5)])
def test_24_one_coordinator_keeps_a_groups_time_over_its_own_busy(groups, busy):
    """15 for 4.5 s, as 150 for the 45 s of the exercise."""
    leaders = leaders_of(groups)
    port = Slow(groups, lambda values, fold: values["a"], lambda *trial: 4.5, leaders)
    assert searched(port, leaders, 16 * groups).utilisation == pytest.approx(busy, rel=0.15)


def test_25_the_right_number_is_that_of_draws():
    """The accuracy of 900 answers, each right with a chance of 0.9, varies by 0.01."""
    right = np.random.default_rng(0).binomial(900, 0.9, 100_000) / 900
    assert right.std() == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("groups", [2, 3, 7])
def test_26_the_coordinator_ends_when_the_exercise_says(groups):
    """On a simulated clock, with times that have nothing to do with the values."""
    times, leaders = np.random.default_rng(groups).uniform(1, 10, 25), leaders_of(groups)
    port = simulation.SimulatedPort(
        groups, lambda values, fold: 0.0, lambda values, fold, n: times[n], leaders
    )
    assert searched(port, leaders, 25).seconds == pytest.approx(notebook_26._end(times, groups))
