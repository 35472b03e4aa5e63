"""Collisions: masses, momentum balance, jets and isolation agree with physics; sequences."""

import numpy as np
import pytest

from tutorial_dl import data
from tutorial_dl.data import collisions as hard
from tutorial_dl.data import particles as seen
from tutorial_dl.data.particles import isolation_sums

N = 3000


@pytest.fixture(scope="module")
def partons():
    """N events of each class, in order."""
    return hard.hard_process(np.repeat(np.arange(3), N), np.random.default_rng(1))


@pytest.fixture(scope="module")
def particles(partons):
    return seen.produced(partons, 30, np.random.default_rng(2))


def mass(p):
    """The mass of the sum of four-momenta, written out: E^2 - px^2 - py^2 - pz^2."""
    return np.sqrt(p[..., 0] ** 2 - p[..., 1] ** 2 - p[..., 2] ** 2 - p[..., 3] ** 2)


def middle(values):
    """The median, and half the distance between the quartiles."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return median, (high - low) / 2


def test_w_and_top_have_their_masses_and_widths(partons):
    """A Breit-Wigner's quartiles are half a width from its median; the cut changes little.

    The median of n masses scatters by pi / (2 sqrt(n)) half widths; 5 sigma are below 0.08 widths.
    """
    p = partons.momentum
    w = [p[N : 2 * N, 0:2].sum(1), p[2 * N :, 2:4].sum(1), p[2 * N :, 4:6].sum(1)]
    for boson in w:
        median, spread = middle(mass(boson))
        assert median == pytest.approx(80.4, abs=0.08 * 2.1)
        assert spread == pytest.approx(2.1 / 2, rel=0.1)
    for b, boson in ((0, w[1]), (1, w[2])):
        median, spread = middle(mass(p[2 * N :, b] + boson))
        assert median == pytest.approx(172.5, abs=0.08 * 1.4)
        assert spread == pytest.approx(1.4 / 2, rel=0.1)


def test_momenta_across_the_beam_add_up_to_zero(partons):
    assert np.abs(partons.momentum[:, :, 1:3].sum(axis=1)).max() < 1e-8
    assert (np.hypot(*partons.momentum[:, :, 1:3].sum(axis=1).T) < 1e-8).all()
    size = np.linalg.norm(partons.momentum[..., 1:], axis=-1)
    for kind, m in ((hard.QUARK, 0), (hard.GLUON, 0), (hard.NEUTRINO, 0), (hard.MUON, 0.10566)):
        here = partons.kind == kind
        on_shell = np.sqrt(size[here] ** 2 + m**2)
        np.testing.assert_allclose(partons.momentum[here][:, 0], on_shell, rtol=1e-6)
    assert (partons.momentum[partons.kind == hard.NONE] == 0).all()


def test_what_each_class_consists_of(partons):
    count = {k: (partons.kind == k).sum(axis=1).reshape(3, N) for k in range(7)}
    leptons = count[hard.ELECTRON] + count[hard.MUON]
    np.testing.assert_array_equal(leptons, [[0] * N, [1] * N, [1] * N])
    np.testing.assert_array_equal(leptons, count[hard.NEUTRINO])
    jets = count[hard.QUARK] + count[hard.GLUON] + count[hard.BOTTOM]
    assert [(j.min(), j.max()) for j in jets] == [(2, 4), (1, 3), (4, 6)]
    assert (count[hard.BOTTOM][2] == 2).all()
    # There are as many electrons as muons: N / 2, +- 5 sigma of a coin.
    assert abs(count[hard.MUON][1].sum() - N / 2) < 5 * np.sqrt(N) / 2
    charged = np.isin(partons.kind, (hard.ELECTRON, hard.MUON))
    np.testing.assert_array_equal(np.abs(partons.charge), charged)


def test_a_decay_is_isotropic_where_the_parent_is_at_rest():
    """In the parent's rest frame, cos(theta) is flat, and both products have momentum M/2.

    A massless product of a parent of energy E and momentum P along z has E1 = (E + P cos) / 2.
    """
    n, m, momentum = 20000, 80.0, 60.0
    random = np.random.default_rng(0)
    rest = np.tile([m, 0.0, 0, 0], (n, 1))
    first, second = hard.decay(rest, np.zeros(n), np.zeros(n), random)
    np.testing.assert_allclose(first[:, 0], m / 2)
    np.testing.assert_allclose(first[:, 1:], -second[:, 1:])
    for axis in (1, 2, 3):  # a flat cosine has mean 0 and mean square 1/3: 5 sigma
        cosine = first[:, axis] / (m / 2)
        assert abs(cosine.mean()) < 5 / np.sqrt(3 * n)
        assert abs((cosine**2).mean() - 1 / 3) < 5 * np.sqrt(4 / 45 / n)
    moving = np.tile([np.hypot(m, momentum), 0, 0, momentum], (n, 1))
    first, _ = hard.decay(moving, np.zeros(n), np.zeros(n), random)
    cosine = (2 * first[:, 0] - np.hypot(m, momentum)) / momentum
    assert abs(cosine.mean()) < 5 / np.sqrt(3 * n) and np.abs(cosine).max() <= 1 + 1e-9
    assert abs((cosine**2).mean() - 1 / 3) < 5 * np.sqrt(4 / 45 / n)
    # t -> b W: for these masses the W has 67.6 GeV in the top's rest frame.
    top = np.tile([172.5, 0.0, 0, 0], (n, 1))
    b, w = hard.decay(top, np.full(n, 4.8), np.full(n, 80.4), random)
    energy = (172.5**2 + 80.4**2 - 4.8**2) / (2 * 172.5)
    np.testing.assert_allclose(w[:, 0], energy)
    np.testing.assert_allclose(mass(b), 4.8, rtol=1e-6)


def test_a_jet_s_particles_add_up_to_its_parton(partons, particles):
    of_jets = particles[particles.parton >= 0]
    total = np.zeros((3 * N, hard.PARTONS, 3))
    np.add.at(total, (of_jets.event, of_jets.parton), of_jets.momentum)
    visible = ~np.isin(partons.kind, (hard.NONE, hard.NEUTRINO))
    np.testing.assert_allclose(total[visible], partons.momentum[visible][:, 1:], atol=1e-8)
    assert (total[~visible] == 0).all()


def test_jets_are_collimated(partons, particles):
    """Nine tenths of a 50 to 100 GeV jet's momentum are within 0.3; soft jets are wider."""
    axis = partons.momentum[particles.event, particles.parton]
    pt = np.hypot(axis[:, 1], axis[:, 2])
    jet = (
        (particles.parton >= 0)
        & (pt > 50)
        & (pt < 100)
        & np.isin(
            partons.kind[particles.event, particles.parton], (hard.QUARK, hard.GLUON, hard.BOTTOM)
        )
    )
    d_phi = np.angle(np.exp(1j * (particles.phi - np.arctan2(axis[:, 2], axis[:, 1]))))
    distance = np.hypot(d_phi, particles.eta - np.arcsinh(axis[:, 3] / np.maximum(pt, 1e-9)))
    within = particles.pt[jet & (distance < 0.3)].sum() / particles.pt[jet].sum()
    assert 0.9 < within < 1
    soft = particles[particles.parton < 0]
    assert len(soft) == pytest.approx(9000 * 30, abs=5 * np.sqrt(9000 * 30))
    assert abs(np.cos(soft.phi).mean()) < 5 / np.sqrt(2 * len(soft))


def test_bottom_hadrons_fly_some_millimetres(partons, particles):
    away = np.linalg.norm(particles.origin, axis=1) * (particles.parton >= 0)
    flavour = partons.kind[particles.event, particles.parton]
    assert (away[flavour != hard.BOTTOM] == 0).all()
    found = (particles.parton >= 0) & (flavour == hard.BOTTOM) & (away > 0)
    axis = partons.momentum[particles.event, particles.parton][:, 1:]
    unit = axis / np.maximum(np.linalg.norm(axis, axis=1, keepdims=True), 1e-9)
    np.testing.assert_allclose(particles.origin[found], (away[:, None] * unit)[found], atol=1e-12)
    # A jet's flight has an exponential distribution with mean 0.045 cm x 0.7 p / 5.3 GeV.
    expected = 0.045 * 0.7 * np.linalg.norm(axis[found], axis=1) / 5.3
    assert (away[found] / expected).mean() == pytest.approx(1, abs=0.1)


def test_the_detector_measures_to_its_precision(particles):
    found = seen.measured(particles, np.random.default_rng(3))
    assert found.energy == pytest.approx(
        np.sqrt(seen.MASS[found.kind] ** 2 + (found.momentum**2).sum(axis=1))
    )
    # Directions do not change, so eta is exact; the threshold is on the true momentum.
    assert np.abs(found.eta).max() < 2.5
    charged = particles.charge != 0
    here = charged & (particles.pt > 1) & (np.abs(particles.eta) < 2.5)
    pile_up = (particles.parton < 0) & (np.abs(particles.origin[:, 2]) > 0.1)
    here &= ~pile_up
    n = here.sum()
    assert (found.charge != 0).sum() == pytest.approx(0.95 * n, abs=5 * np.sqrt(0.0475 * n))
    # Muons of known momentum have errors of 1% and 0.02% per GeV, added in squares.
    muons = found[:1000]
    for name, value in (("event", 0), ("parton", 0), ("kind", seen.MUON), ("charge", 1)):
        setattr(muons, name, np.full(1000, value))
    muons.momentum, muons.origin = np.tile([30.0, 40.0, 10.0], (1000, 1)), np.zeros((1000, 3))
    pt = seen.measured(muons, np.random.default_rng(4)).pt
    expected = 50 * np.hypot(0.01, 0.0002 * 50)
    assert pt.std() == pytest.approx(expected, rel=5 / np.sqrt(2 * len(pt)))


def test_isolation_sums_count_each_neighbour_once():
    """Three particles lie in a row, 0.2 apart, across phi = pi; one is in another event."""
    phi = np.array([np.pi - 0.2, np.pi, -np.pi + 0.2, np.pi])
    sums = isolation_sums(
        np.array([0, 3, 4]), np.array([1.0, 10.0, 100.0, 1000.0]), np.zeros(4), phi,
        np.array([0, 1, -1, 2]), 0.3,
    )  # fmt: skip
    np.testing.assert_array_equal(sums, [[0, 10, 0], [1, 0, 0], [0, 10, 0], [0, 0, 0]])


def test_leptons_of_a_w_are_isolated_and_those_in_jets_are_not():
    dataset = data.events(3000)
    x, y = dataset.train.inputs, dataset.train.targets
    name = {feature: i for i, feature in enumerate(seen.FEATURES)}
    lepton = (x[..., name["is_electron"]] + x[..., name["is_muon"]]) > 0
    around = x[..., 11:14].sum(axis=-1)
    hardest = np.array(
        [e[m][0] if m.any() else np.nan for e, m in zip(around, lepton, strict=True)]
    )
    isolated = hardest < 0.3  # 3 GeV
    by_class = [isolated[y == c].mean() for c in range(3)]
    assert by_class[0] < 0.02 and by_class[1] > 0.6 and by_class[2] > 0.6
    displaced = (np.hypot(x[..., name["x"]], x[..., name["y"]]) > 0.02).any(axis=1)
    assert displaced[y == 2].mean() > 0.8 > 0.4 > displaced[y < 2].mean()


def test_sequences():
    dataset = data.events(600)
    x, y = dataset.train.inputs, dataset.train.targets
    assert x.shape == (600, 338, 20) and x.dtype == np.float32 and dataset.classes == 3
    assert len(dataset.validation) == 150 and len(seen.FEATURES) == 20
    np.testing.assert_array_equal(np.bincount(y), [200] * 3)
    there = x.any(axis=-1)
    assert (np.diff(there.astype(int), axis=1) <= 0).all()  # zeros come last
    assert there.any(axis=1).all() and np.isfinite(x).all()
    energy, px, py, pz, pt, eta, phi, log_pt = (x[..., i] for i in range(8))
    assert (np.diff(pt, axis=1) <= 0).all()
    np.testing.assert_allclose(np.hypot(px, py), pt, atol=1e-5)
    np.testing.assert_allclose(pt * np.sinh(eta), pz, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(pt * np.cos(phi), px, atol=1e-4)
    np.testing.assert_allclose(10 ** log_pt[there], 10 * pt[there], rtol=1e-4)  # GeV
    kind = x[..., 15:]
    np.testing.assert_array_equal(kind.sum(axis=-1), there)
    charged = kind[..., [0, 3, 4]].sum(axis=-1)
    np.testing.assert_array_equal(np.abs(x[..., 14]), charged)
    mass2 = (energy.astype(float) ** 2 - px.astype(float) ** 2 - py.astype(float) ** 2) - pz**2
    pions = (kind[..., 0] == 1) & (energy < 1)  # below 10 GeV, float32 is precise enough
    assert 10 * np.sqrt(np.median(mass2[pions])) == pytest.approx(0.13957, rel=0.01)
    assert (there & (x[..., 8:11].any(axis=-1)) & (charged == 0)).sum() == 0  # no tracks


def test_the_seed_decides_everything():
    first, again, other = (data.events(60, seed=s).train for s in (0, 0, 1))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    np.testing.assert_array_equal(first.targets, again.targets)
    assert not np.array_equal(first.inputs, other.inputs)
    one = data.events(60)
    assert not np.array_equal(one.train.inputs[:15], one.validation.inputs)
    short = data.events(60, particles=12).train.inputs  # the 12 particles with most momentum
    np.testing.assert_array_equal(short, first.inputs[:, :12])
    crowded = data.events(9, soft=2000).train.inputs
    assert crowded.any(axis=-1).mean() > 0.9
    for wrong, message in (
        (dict(n=0), "n must be at least 1"), (dict(particles=0), "particles must be at least 1"),
        (dict(seed=-1), "seed must be at least 0"), (dict(soft=-1), "soft must be at least 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            data.events(**wrong)
