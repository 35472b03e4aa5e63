"""Showers agree with the closed forms of their parametrisation, on any number of ranks; files."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, special, stats

from tutorial_dl import data
from tutorial_dl.data import showers
from tutorial_dl.data.calorimeter import GRANULAR, SMALL
from tutorial_dl.data.counted_random import gamma, normal, uniform
from tutorial_dl.data.shower_kernel import below
from tutorial_dl.data.shower_physics import longitudinal, radial, relative_depth, spots

N = 1500
QUIET = replace(SMALL, noise=0.0, threshold=0.0)  # only what the closed forms describe


def at(energy, calorimeter=QUIET, n=N, **options):
    return showers.simulate(range(n), 1, calorimeter, (energy, energy), **options)


def expected(energy, function, nodes=24):
    """The mean of function(T, a) over the normal distribution of ln T and ln a, by quadrature."""
    mean_t, mean_a, spread_t, spread_a, rho = longitudinal(energy, QUIET.numbers)
    x, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    total = 0.0
    for u, wu in zip(x, weights, strict=True):
        for v, wv in zip(x, weights, strict=True):
            shape = np.exp(mean_a + spread_a * (rho * u + np.sqrt(1 - rho**2) * v))
            total = total + wu * wv * function(np.exp(mean_t + spread_t * u), max(shape, 1.05))
    return total


def shares(maximum, shape, calorimeter=QUIET):
    """The share of the energy in each layer, by scipy's incomplete gamma function."""
    depth = calorimeter.depth / calorimeter.radiation_length
    edges = np.linspace(0, depth, calorimeter.layers + 1)
    return np.diff(special.gammainc(shape, (shape - 1) / maximum * edges))


def test_numbers_that_showers_are_drawn_with():
    state = np.array([7], np.uint64)
    drawn = np.array([uniform(state) for _ in range(20_000)])
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
    drawn = np.array([normal(state) for _ in range(20_000)])
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    for shape in (0.3, 1.0, 40.0):
        drawn = np.array([gamma(state, shape) for _ in range(20_000)])
        assert stats.kstest(drawn, stats.gamma(shape).cdf).pvalue > 1e-3
    shapes, at = np.geomspace(1.05, 20, 15)[:, None], np.geomspace(1e-3, 80, 40)
    ours = [[below(a, x) for x in at] for a in shapes[:, 0]]
    np.testing.assert_allclose(ours, special.gammainc(shapes, at), rtol=1e-11, atol=1e-300)


def test_the_medium_is_that_of_the_paper():
    """For one material, the mixture is that material: tungsten, against the particle data group."""
    pure = replace(GRANULAR, sensor=GRANULAR.absorber)
    assert pure.radiation_length == pytest.approx(0.3504, rel=1e-3)  # cm
    assert pure.moliere_radius == pytest.approx(0.93, rel=0.02)  # cm
    assert pure.critical_energy == pytest.approx(7.97, rel=0.02)  # MeV
    assert pure.charge == 74 and pure.electron_to_mip == 1


@pytest.mark.parametrize("energy", [10.0, 250.0])
def test_depth_of_the_maximum_and_exponent(energy):
    mean_t, mean_a, spread_t, spread_a, rho = longitudinal(energy, QUIET.numbers)
    t, a = np.log(at(energy).shapes).T
    for found, mean, spread in ((t, mean_t, spread_t), (a, mean_a, spread_a)):
        assert found.mean() == pytest.approx(mean, abs=4 * spread / np.sqrt(N))
        assert found.std() == pytest.approx(spread, rel=4 / np.sqrt(2 * N))
    assert np.corrcoef(t, a)[0, 1] == pytest.approx(rho, abs=4 * (1 - rho**2) / np.sqrt(N))
    # In a homogeneous medium that is sampled everywhere, the maximum is at ln(E / Ec) - 0.812
    thin = {"absorber_thickness": 1e-9, "sensor_thickness": 1e-9}
    whole = replace(QUIET, absorber=QUIET.sensor, **thin)
    y = np.log(1000 * energy / whole.critical_energy)
    assert np.exp(longitudinal(energy, whole.numbers)[0]) == pytest.approx(y - 0.812, abs=1e-6)


# The same formulas as two programs have them, by their authors: Geant4's tuning classes
# (GVFlashHomoShowerTuning.hh, GFlashSamplingShowerTuning.hh) and CMSSW's fast simulation
# (FastSimulation/ShowerDevelopment, EMECALShowerParametrization.h).
GEANT4 = {
    "T": (-0.812, -0.55, -0.69), "a": (0.81, 0.458, 2.26, -0.476),
    "spreads": (-2.5, 1.25, -0.82, 0.79), "rho": (0.784, -0.023),
    "core": (0.0251, 0.00319, 0.1162, -0.000381, -0.0203, 0.0397),
    "tail": (0.659, -0.00309, 0.645, -2.59, 0.3585, 0.0412, -0.14, -0.495),
    "share": (2.632, -0.00094, 0.401, 0.00187, 1.313, -0.0686, 0.348, -0.642),
    "spots": (10.3, 0.959, 0.813, 0.0019, 0.844, 0.0026),
}  # fmt: skip
# CMSSW has the same numbers but for k4 = 0.3585 + 0.0421 ln E, and so has its port of the first
# authors' Fortran program (SimGeneral/GFlash/src/GflashEMShowerProfile.cc).
CMSSW = GEANT4 | {"tail": (0.659, -0.00309, 0.645, -2.59, 0.3585, 0.0421, -0.14, -0.495)}


@pytest.mark.parametrize("energy", [10.0, 250.0])
def test_constants_are_those_of_other_programs(energy):
    Z, critical, frequency, ratio, *_ = GRANULAR.numbers
    lack, rate, ln_y, ln_e = 1 - ratio, 1 / frequency, np.log(energy / critical), np.log(energy)
    t, a, s, rho, core, tail, share, dots = CMSSW.values()
    depth = ln_y + t[0] + t[1] * rate + t[2] * lack
    shape = a[0] + (a[1] + a[2] / Z) * ln_y + a[3] * rate
    expected = (np.log(depth), np.log(shape), 1 / (s[0] + s[1] * ln_y), 1 / (s[2] + s[3] * ln_y),
                rho[0] + rho[1] * ln_y)  # fmt: skip
    np.testing.assert_allclose(longitudinal(energy, GRANULAR.numbers), expected, rtol=1e-13)

    c = GRANULAR.resolution
    expected = (dots[0] / c * energy ** dots[1], 7 * (dots[2] + dots[3] * Z),
                4 * (dots[4] + dots[5] * Z))  # fmt: skip
    np.testing.assert_allclose(spots(energy, 7.0, 4.0, GRANULAR.numbers), expected, rtol=1e-13)

    def tail_at(tau, k):
        both = [np.exp(slope * (tau - k[2])) for slope in (k[3], k[4] + k[5] * ln_e)]
        return (k[0] + k[1] * Z) * sum(both) + k[6] * lack + k[7] * rate * np.exp(-tau)

    for tau in (0.1, 0.645, 1.0, 2.5):
        place = (share[2] + share[3] * Z - tau) / (share[4] + share[5] * ln_e)
        p = (share[0] + share[1] * Z) * np.exp(place - np.exp(place))
        p += lack * (share[6] + share[7] * rate * np.exp(-((tau - 1) ** 2)))
        rc = core[0] + core[1] * ln_e + (core[2] + core[3] * Z) * tau
        rc += core[4] * lack + core[5] * rate * np.exp(-tau)
        found = radial(energy, tau, GRANULAR.numbers)
        np.testing.assert_allclose(found, (rc, tail_at(tau, tail), p), rtol=1e-12)
        # How much the two programs' k4 differ by: less than 2% of Rt before tau = 2.5
        assert tail_at(tau, GEANT4["tail"]) == pytest.approx(found[1], rel=0.02)


def test_depth_in_units_of_the_centre_of_gravity():
    """By its definition: <t> is where the gamma distribution has its mean; CMSSW's tScale."""
    mean_a = np.log(4.5)
    for maximum, shape in ((6.0, 4.5), (5.0, 3.0), (8.0, 7.0)):
        gravity = stats.gamma(shape, scale=maximum / (shape - 1)).mean()
        at_mean = gravity * (4.5 - 1) / 4.5
        assert relative_depth(at_mean, maximum, shape, mean_a) == pytest.approx(1, rel=1e-12)
    assert relative_depth(6.0, 6.0, 4.5, mean_a) == pytest.approx(1)  # a mean shape: t / T


@pytest.mark.thorough(but="20.0")
@pytest.mark.parametrize("energy", [20.0, 400.0])
def test_mean_profile_containment_and_resolution(energy):
    made = at(energy)
    layers = made.voxels.sum(axis=(2, 3), dtype=np.float64) / 1000 / energy  # shares (n, layers)
    core_and_tail = np.array(
        [_sideways(energy, made.shapes, layer, QUIET.cells) for layer in range(QUIET.layers)]
    ).T  # fmt: skip  (n, layers)
    given = np.array([shares(*shape) for shape in made.shapes])
    spread = layers.std(axis=0) / np.sqrt(N)
    mean = expected(energy, shares)
    assert (np.abs(given.mean(axis=0) - mean) < 5 * given.std(axis=0) / np.sqrt(N)).all()
    assert (np.abs(layers.mean(axis=0) - (given * core_and_tail).mean(axis=0)) < 5 * spread).all()
    # Fluctuations: c^2 / E of what is deposited, and those of what leaves the calorimeter
    total, inside = layers.sum(axis=1), (given * core_and_tail).sum(axis=1)
    variance = QUIET.resolution**2 * inside.mean() / energy + inside.var()
    assert total.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / N))


def _sideways(energy, shapes, layer, cells):
    """The share of a layer's energy within the middle `cells` x `cells` cells, (n,); shapes: T, a.

    The profile's density R^2 / (pi (x^2 + y^2 + R^2)^2), integrated over a square of half side h,
    is 4 / pi times s atan(s) with s = h / sqrt(h^2 + R^2).
    """
    depth = QUIET.depth / QUIET.radiation_length * (layer + 0.5) / QUIET.layers
    half = QUIET.width / QUIET.moliere_radius * cells / QUIET.cells / 2
    mean_shape = np.exp(longitudinal(energy, QUIET.numbers)[1])
    centre = [t * a / (a - 1) for t, a in shapes]  # <t> of a gamma distribution with mode t
    taus = [depth / of * mean_shape / (mean_shape - 1) for of in centre]
    of = np.array([radial(energy, tau, QUIET.numbers) for tau in taus])
    core, tail, share = of.T

    def inside(radius):
        s = half / np.hypot(half, radius)
        return 4 / np.pi * s * np.arctan(s)

    return share * inside(core) + (1 - share) * inside(tail)


def test_share_in_a_square_is_the_integral_of_the_profile():
    """The closed form that other tests use is the integral over a square; Rc, Rt, p are right."""
    core, tail, share = radial(100.0, 1.2, QUIET.numbers)
    half = 3 * QUIET.width / QUIET.moliere_radius / QUIET.cells / 2

    def density(x, y):
        of = [w * r**2 / (np.pi * (x * x + y * y + r**2) ** 2)
              for w, r in ((share, core), (1 - share, tail))]  # fmt: skip
        return sum(of)

    whole, _ = integrate.dblquad(density, 0, half, 0, half)
    depth = QUIET.depth / QUIET.radiation_length / QUIET.layers / 2
    shape = np.exp(longitudinal(100.0, QUIET.numbers)[1])  # a mean one: tau = t / T
    found = _sideways(100.0, [(depth / 1.2, shape)], 0, 3)
    assert found[0] == pytest.approx(4 * whole, rel=1e-6)


@pytest.mark.parametrize("energy", [20.0, 400.0])
def test_radial_profile(energy):
    made, middle = at(energy), QUIET.cells // 2
    here = slice(middle - 1, middle + 2)
    for layer in (1, 3, 6, 9):
        square = made.voxels[:, layer, here, here].sum(axis=(1, 2), dtype=np.float64)
        given = np.array([shares(*shape)[layer] for shape in made.shapes]) * 1000 * energy
        mean = (given * _sideways(energy, made.shapes, layer, 3)).mean()
        assert square.mean() == pytest.approx(mean, abs=5 * square.std() / np.sqrt(N))
    x, y = made.voxels.sum(axis=(1, 3)).mean(axis=0), made.voxels.sum(axis=(1, 2)).mean(axis=0)
    for profile in (x, y):
        np.testing.assert_allclose(profile, profile[::-1], rtol=0.1)


def test_width_follows_the_shape_of_each_shower():
    """Showers with a small exponent a are young for longer: tau, not t / T, says how wide they are.

    The share of a layer's energy in the middle cells, less the expected one, must not depend on the
    ratio of tau to t / T.
    """
    made, middle, layer = at(400.0, n=500), QUIET.cells // 2, 8
    here = slice(middle - 1, middle + 2)
    whole = made.voxels[:, layer].sum(axis=(1, 2), dtype=np.float64)
    share = made.voxels[:, layer, here, here].sum(axis=(1, 2), dtype=np.float64) / whole
    inner, outer = (_sideways(400.0, made.shapes, layer, cells) for cells in (3, QUIET.cells))
    a = made.shapes[:, 1]
    ratio = (a - 1) / a
    fit = stats.linregress(ratio - ratio.mean(), share - inner / outer)
    assert abs(fit.slope) < 5 * fit.stderr < 0.1  # with t / T it is -0.28


def test_resolution_falls_with_the_root_of_energy():
    """In a calorimeter so deep and wide that it holds everything, sigma / E = c / sqrt(E)."""
    whole = replace(QUIET, depth=100.0, width=4000.0, cells=1, layers=40)
    for energy in (10.0, 90.0):
        total = at(energy, whole).voxels.sum(axis=(1, 2, 3), dtype=np.float64) / 1000
        spread = whole.resolution * np.sqrt(energy)
        assert total.mean() == pytest.approx(energy, abs=5 * spread / np.sqrt(N))
        assert total.std() == pytest.approx(spread, rel=5 / np.sqrt(2 * N))


def test_noise_and_threshold():
    """Voxels without energy read noise alone: normal, beyond the threshold."""
    for noise, threshold in ((2.0, 1.0), (2.0, 3.0)):
        wide = replace(SMALL, width=4e5, noise=noise, threshold=threshold)  # one voxel is hit
        read = at(10.0, wide, n=300).voxels[:, :, 0, :]
        assert read.min() >= 0 and not ((read > 0) & (read < threshold)).any()
        chance = stats.norm.sf(threshold / noise)
        found = read[read > 0]
        count = stats.binom(read.size, chance)
        assert abs(found.size - count.mean()) < 5 * count.std()
        tail = stats.truncnorm(threshold / noise, np.inf, scale=noise)
        assert stats.kstest(found, tail.cdf).pvalue > 1e-3


def test_at_an_angle_the_shower_moves_sideways():
    fine = replace(QUIET, cells=65)  # voxels of 2 mm
    layers = at(100.0, fine, n=300, angle=30.0).voxels.mean(axis=0, dtype=np.float64)
    middle = ((np.arange(fine.cells) + 0.5) / fine.cells - 0.5) * fine.width
    x = layers.sum(axis=2) @ middle / layers.sum(axis=(1, 2))
    y = layers.sum(axis=1) @ middle / layers.sum(axis=(1, 2))
    depth = (np.arange(fine.layers) + 0.5) / fine.layers * fine.depth
    # As far as the tail leaves the calorimeter hardly more on one side than on the other
    np.testing.assert_allclose(x[:5], depth[:5] * np.tan(np.pi / 6), rtol=0.08, atol=0.03)
    assert np.abs(y[:9]).max() < 0.05


def test_a_shower_depends_on_its_number_and_the_seed():
    whole = showers.simulate(range(10), 3)
    for rank in range(3):
        part = showers.simulate(range(10)[rank::3], 3)
        np.testing.assert_array_equal(part.voxels, whole.voxels[rank::3])
        np.testing.assert_array_equal(part.energies, whole.energies[rank::3])
    assert not (showers.simulate(range(10), 4).energies == whole.energies).any()
    assert whole.energies.min() >= 10 and whole.energies.max() <= 500
    with pytest.raises(ValueError, match=r"energies must be from 1 to 1000 GeV.*got \(0, 5\)"):
        showers.simulate(range(1), energies=(0, 5))
    with pytest.raises(ValueError, match="angle must be from -60 to 60 degrees, got 90"):
        showers.simulate(range(1), angle=90)


def test_files_as_of_the_challenge(tmp_path):
    h5py = pytest.importorskip("h5py")
    made = showers.simulate(range(5), 0, SMALL)
    path = showers.write(tmp_path / "showers.h5", made)
    with h5py.File(path) as file:
        assert file["showers"].shape == (5, 13 * 13 * 13)
        assert file["incident_energies"].shape == (5, 1)
        assert file["incident_energies"][0, 0] == pytest.approx(1000 * made.energies[0])
        np.testing.assert_array_equal(file["showers"][2], made.voxels[2].ravel())
    back = showers.read(path)
    np.testing.assert_array_equal(back.voxels, made.voxels)
    np.testing.assert_allclose(back.energies, made.energies, rtol=1e-6)
    again = data.load(str(path), features="showers", labels="incident_energies", validation=0.2)
    assert again.inputs_shape == (2197,) and len(again.train) == 4
    with pytest.raises(data.DataError, match=r"2197 voxels and 5 energies; expected .*45"):
        showers.read(path, (45, 16, 9))
    data.write_hdf5(data.digits().train.rows(slice(3)), tmp_path / "digits.h5")
    with pytest.raises(data.DataError, match=r"no dataset 'showers'; it has \['features'"):
        showers.read(tmp_path / "digits.h5")


def test_a_file_of_the_challenge_itself(tmp_path):
    """Data set 2: (showers, 6480) and (showers, 1), float64 in MeV; layer, angle, radius."""
    h5py = pytest.importorskip("h5py")
    voxels = np.zeros((3, 45, 16, 9))
    voxels[1, 44, 15, 8], voxels[2, 10, 3, 0] = 7.0, 0.25
    with h5py.File(tmp_path / "dataset_2_1.hdf5", "w") as file:
        file["showers"] = voxels.reshape(3, 6480)
        file["incident_energies"] = np.array([[1e3], [5e4], [1e6]])
    read = showers.read(tmp_path / "dataset_2_1.hdf5", (45, 16, 9))
    np.testing.assert_array_equal(read.voxels, voxels)
    np.testing.assert_array_equal(read.energies, [1.0, 50.0, 1000.0])
    assert read.voxels.dtype == np.float32 and read.shapes is None
    with pytest.raises(
        data.DataError, match=r"6480 voxels per shower: give shape=\(layers, x, y\)"
    ):
        showers.read(tmp_path / "dataset_2_1.hdf5")


def test_dataset_by_name():
    small = showers.small_showers(40, seed=2)
    assert small.inputs_shape == SMALL.shape and len(small.validation) == 10
    both = showers.simulate(range(50), 2, SMALL)
    np.testing.assert_array_equal(small.validation.inputs, both.voxels[40:] / np.float32(1000))
    assert small.train.targets.dtype == np.float32 and {"showers", "small-showers"} <= {*data.NAMES}
