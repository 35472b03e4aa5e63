"""Quality: histograms, moments and classifiers against closed forms; baselines in their order."""

import numpy as np
import pytest
from scipy import linalg, stats

from tutorial_dl import data
from tutorial_dl.data import showers as simulation
from tutorial_dl.data.calorimeter import SMALL
from tutorial_dl.quality import digits, frechet, showers
from tutorial_dl.quality.separation import separation, separations
from tutorial_dl.quality.two_sample_classifier import auc


def test_separation_power():
    assert separation([2, 2, 0], [1, 1, 0]) == 0 and separation([1, 0], [0, 3]) == 1
    # h1 = (1, 0), h2 = (1/2, 1/2): 1/2 (1/4 / (3/2) + 1/4 / (1/2)) = 1/3
    assert separation([4, 0], [5, 5]) == pytest.approx(1 / 3)
    random = np.random.default_rng(0)
    n, bins = 20_000, 30
    alike = separations(random.random((n, 40)), random.random((n, 40)), bins)
    assert alike.mean() == pytest.approx((bins - 1) / (2 * n), rel=0.2)  # its bias
    # Two normal distributions, d apart, against the integral of 1/2 (p - q)^2 / (p + q)
    x = np.linspace(-8, 9, 40_001)
    p, q = stats.norm.pdf(x), stats.norm.pdf(x, 1)
    expected = 0.5 * np.trapezoid((p - q) ** 2 / (p + q), x)
    apart = separations(random.normal(1, 1, (n, 1)), random.normal(0, 1, (n, 1)), 60)
    assert apart[0] == pytest.approx(expected, rel=0.08)


def test_separation_of_what_is_always_the_same():
    same, other = np.full((50, 2), 1.0), np.full((50, 2), 1.0)
    other[:, 1] = 0.5
    assert separations(other, same).tolist() == [0.0, 1.0]


def test_showers_need_not_be_as_wide_as_deep():
    x = np.zeros((1, 45, 16, 9))
    x[0, 3, 15, 0] = 2.0
    found = showers.features(x, np.array([4.0]))
    assert found["centre x"][0, 3] == 7.5 and found["centre y"][0, 3] == -4.0
    assert found["energy ratio"][0, 0] == 0.5


def test_frechet_distance_of_moments():
    random = np.random.default_rng(1)
    m1, m2 = random.normal(size=(2, 4))
    s1, s2 = (a @ a.T for a in random.normal(size=(2, 4, 4)))
    expected = np.sum((m1 - m2) ** 2) + np.trace(s1 + s2 - 2 * linalg.sqrtm(s1 @ s2).real)
    assert frechet.of_moments(m1, s1, m2, s2) == pytest.approx(expected, rel=1e-9)
    assert frechet.of_moments(m1, s1, m1, s1) == pytest.approx(0, abs=1e-9)


def test_frechet_distance_is_extrapolated():
    random = np.random.default_rng(2)
    first, second = random.normal(size=(2, 1500, 12))
    biased = frechet.distance(first, second)
    assert biased > 0.02 and abs(frechet.extrapolated(first, second)) < 0.4 * biased
    moved = frechet.extrapolated(first + 0.5, second)
    assert moved == pytest.approx(12 * 0.25, rel=0.15)  # |m1 - m2|^2


def test_auc_of_a_classifier():
    """Of two normal distributions d apart, the best classifier has AUC Phi(d / sqrt 2)."""
    random = np.random.default_rng(3)
    for apart in (0.0, 1.5):
        found = auc(random.normal(apart, 1, (1500, 1)), random.normal(0, 1, (1500, 1)))
        assert found == pytest.approx(stats.norm.cdf(apart / np.sqrt(2)), abs=0.04)


def two_sets(n=500):
    energies = np.linspace(20, 400, n)
    made = [
        np.concatenate(
            [
                simulation.simulate([i], seed, SMALL, (e, e)).voxels / 1000
                for i, e in enumerate(energies)
            ]
        )
        for seed in range(3)
    ]
    return energies, made


def test_features_by_hand():
    x = np.zeros((1, 2, 3, 3))
    x[0, 0, 0, 1], x[0, 0, 2, 1], x[0, 1, 1, 2] = 3.0, 1.0, 2.0
    found = showers.features(x, np.array([8.0]))
    np.testing.assert_allclose(found["energy ratio"], [[0.75]])
    np.testing.assert_allclose(found["layer energy"], [[0.5, 0.25]])
    np.testing.assert_allclose(found["centre x"], [[-0.5, 0]])  # (3 (-1) + 1) / 4
    np.testing.assert_allclose(found["centre y"], [[0, 1]])
    np.testing.assert_allclose(found["width x"], [[np.sqrt(0.75), 0]])
    np.testing.assert_allclose(found["sparsity"], [[7 / 9, 8 / 9]])


@pytest.mark.thorough
def test_report_of_showers():
    energies, (simulated, again, third) = two_sets()
    found = showers.report(third, simulated, energies, again)
    ours, floor, ceiling = (
        found[name] for name in ("generated", "simulation again", "mean shower")
    )
    for one in (ours, floor):  # both are simulated
        assert one["separation"] < 0.05 and abs(one["auc"] - 0.5) < 0.1 and one["frechet"] < 2
    assert ceiling["separation"] > 5 * floor["separation"] and ceiling["auc"] > 0.95
    assert ceiling["frechet"] > 10 * abs(floor["frechet"])
    assert set(floor["separation by feature"]) == set(showers.features(simulated, energies))
    assert found["profile"] < 0.1
    shifted = np.roll(simulated, 1, axis=1)
    assert showers.profile_error(shifted, simulated) > 0.2
    assert showers.profile_error(1.07 * simulated, simulated) == pytest.approx(0.07, rel=1e-5)


def test_response():
    voxels = np.ones((4, 1, 2, 2)) * np.array([1.0, 3, 1, 3]).reshape(4, 1, 1, 1)
    assert showers.response(voxels, 16.0) == (0.5, 0.5)


def test_resolution_by_range_of_energy():
    """Showers of one voxel: fluctuations that are half, right, and 1.2 times as large."""
    random = np.random.default_rng(4)
    energies, noise = random.permutation(np.arange(1.0, 3001.0)), random.normal(0, 0.1, 3000)
    factor = np.select([energies <= 1000, energies <= 2000], [0.5, 1.0], 1.2)

    def voxels(fluctuation):
        return (energies * (1 + fluctuation)).reshape(-1, 1, 1, 1)

    simulated = voxels(noise)
    found = showers.resolution_error(voxels(factor * noise), simulated, energies[:, None])
    assert found == pytest.approx(0.5, abs=0.01)
    factor[energies <= 1000] = 1
    found = showers.resolution_error(voxels(factor * noise), simulated, energies)
    assert found == pytest.approx(0.2, abs=0.01)
    assert showers.resolution_error(simulated, simulated, energies) == 0


def test_judge_of_digits():
    dataset = data.digits()
    judge = digits.judge(dataset)
    assert judge.accuracy > 0.95
    real, asked = dataset.validation.inputs, dataset.validation.targets
    found = judge.report(real, asked)
    assert found["accuracy"] == pytest.approx(judge.accuracy) and not found["missing"]
    assert found["frechet"] < 0.2 + abs(found["frechet of data"])
    wrong = judge.report(real, (asked + 1) % 10)
    assert wrong["accuracy"] < 0.05
    ones = judge.report(real[asked == 1].repeat(10, axis=0), np.arange(360) % 10)
    assert len(ones["missing"]) >= 8 and ones["frechet"] > 10 * found["frechet of data"]
    with pytest.raises(ValueError, match="'curve': a judge needs classes"):
        digits.judge(data.curve())
