"""The first 1e-23 s of a proton collision: the few particles of the hard process.

There are three kinds of events. Experiments at the LHC must tell them apart while taking data, and
so does MPI-Learn's benchmark (Anderson, Vlimant, Spiropulu, arXiv 1712.05878; the physics: Nguyen
et al., arXiv 1807.00083):

    QCD      p p -> 2 to 4 jets                                          of gluons and quarks
    W        p p -> W + 1 to 3 jets,  W -> lepton neutrino               one isolated lepton
    ttbar    p p -> t t + 0 to 2 jets,  t -> b W,  one W -> lepton neutrino, the other -> q q
                                                                         a lepton, two b, four jets

As in nature, the distribution of momenta falls steeply, and momenta transverse to the beam sum to
zero; masses are drawn from Breit-Wigner curves; decays are isotropic in the parent's rest frame.
Rates are not nature's (nearly all events would be QCD), and matrix elements, spins and parton
densities are left out.

Four-momenta are (E, px, py, pz) in GeV, c = 1, the beam along z.
"""

from dataclasses import dataclass

import numpy as np

QCD, W_JETS, TTBAR = range(3)
CLASSES = ("QCD", "W + jets", "ttbar")

NONE, QUARK, GLUON, BOTTOM, ELECTRON, MUON, NEUTRINO = range(7)
PARTONS = 8  # places for partons per event

# GeV; https://pdg.lbl.gov
W_MASS, W_WIDTH, TOP_MASS, TOP_WIDTH, B_MASS = 80.4, 2.1, 172.5, 1.4, 4.8
LEPTON_MASS = {ELECTRON: 0.000511, MUON: 0.10566}


@dataclass(frozen=True)
class Partons:
    """The hard processes of n events."""

    momentum: np.ndarray  # (n, PARTONS, 4), GeV; zeros for an empty place
    kind: np.ndarray  # (n, PARTONS), NONE to NEUTRINO
    charge: np.ndarray  # (n, PARTONS), charge of a lepton; 0 for all others


def hard_process(labels: np.ndarray, random: np.random.Generator) -> Partons:
    """Generate one event for each label (QCD, W_JETS or TTBAR), shape (n,).

    For ttbar, places 0 to 5 hold the two b, the lepton and its neutrino, and the two quarks of the
    other W. For W + jets, places 0 and 1 hold the lepton and its neutrino. All other jets follow.
    """
    n = len(labels)
    shape = (n, PARTONS)
    made = Partons(np.zeros((*shape, 4)), np.zeros(shape, int), np.zeros(shape, int))
    for label, make in ((QCD, _qcd), (W_JETS, _w_jets), (TTBAR, _ttbar)):
        where = np.flatnonzero(labels == label)
        for place, (momentum, kind, charge) in enumerate(make(len(where), random)):
            made.momentum[where, place] = momentum * (kind != NONE)[:, None]
            made.kind[where, place] = kind
            made.charge[where, place] = charge
    return made


def _qcd(n: int, random: np.random.Generator) -> list:
    leading = _jet(_falling(60, n, random), random)
    extra = _extra(n, (0.6, 0.3, 0.1), random)
    last = _balance([leading, *(p for p, *_ in extra)], np.zeros(n), random)
    kinds, chances = (GLUON, QUARK, BOTTOM), (0.6, 0.35, 0.05)
    return [(p, random.choice(kinds, n, p=chances), 0) for p in (leading, last)] + extra


def _w_jets(n: int, random: np.random.Generator) -> list:
    leading = _jet(_falling(30, n, random), random)
    extra = _extra(n, (0.7, 0.2, 0.1), random)
    w = _balance([leading, *(p for p, *_ in extra)], _mass(W_MASS, W_WIDTH, n, random), random)
    kind = random.choice((QUARK, GLUON, BOTTOM), n, p=(0.8, 0.18, 0.02))
    return [*_leptonic(w, random), (leading, kind, 0), *extra]


def _ttbar(n: int, random: np.random.Generator) -> list:
    masses = [_mass(TOP_MASS, TOP_WIDTH, n, random) for _ in range(2)]
    first = _along(random.gamma(2, 55, n), random.normal(0, 0.8, n), masses[0], random)
    extra = _extra(n, (0.5, 0.35, 0.15), random)
    second = _balance([first, *(p for p, *_ in extra)], masses[1], random)
    b, w = [], []
    for top in (first, second):
        products = decay(top, np.full(n, B_MASS), _mass(W_MASS, W_WIDTH, n, random), random)
        b.append(products[0])
        w.append(products[1])
    zero = np.zeros(n)
    quarks = [(p, np.full(n, QUARK), 0) for p in decay(w[1], zero, zero, random)]
    bottoms = [(p, np.full(n, BOTTOM), 0) for p in b]
    return [*bottoms, *_leptonic(w[0], random), *quarks, *extra]


def _leptonic(w: np.ndarray, random: np.random.Generator) -> list:
    """W -> electron or muon, and its neutrino."""
    kind = random.choice((ELECTRON, MUON), len(w))
    mass = np.where(kind == ELECTRON, LEPTON_MASS[ELECTRON], LEPTON_MASS[MUON])
    lepton, neutrino = decay(w, mass, np.zeros(len(w)), random)
    charge = random.choice((-1, 1), len(w))
    return [(lepton, kind, charge), (neutrino, np.full(len(w), NEUTRINO), 0)]


def _extra(n: int, chances: tuple[float, ...], random: np.random.Generator) -> list:
    """0, 1 or 2 softer jets, radiated off the incoming protons' quarks and gluons."""
    number = random.choice(len(chances), n, p=chances)
    jets = []
    for i in range(len(chances) - 1):
        there = number > i
        momentum = _jet(20 + random.exponential(20, n), random) * there[:, None]
        kind = random.choice((GLUON, QUARK), n, p=(0.7, 0.3))
        jets.append((momentum, np.where(there, kind, NONE), 0))
    return jets


def _falling(least: float, n: int, random: np.random.Generator) -> np.ndarray:
    """Transverse momenta of density ~ pT^-5, from `least` up to 1 TeV."""
    return np.minimum(least * (1 - random.random(n)) ** -0.25, 1000.0)


def _mass(mean: float, width: float, n: int, random: np.random.Generator) -> np.ndarray:
    """Masses from a Breit-Wigner curve (`width` at half height), cut at 15 GeV on either side."""
    edge = np.arctan(15 / (width / 2))
    return mean + width / 2 * np.tan(random.uniform(-edge, edge, n))


def _along(pt: np.ndarray, y: np.ndarray, mass: np.ndarray, random) -> np.ndarray:
    """Four-momenta (n, 4) with transverse momentum pt, rapidity y and a random azimuth."""
    phi = random.uniform(-np.pi, np.pi, len(pt))
    return _four(pt * np.cos(phi), pt * np.sin(phi), y, mass)


def _four(px: np.ndarray, py: np.ndarray, y: np.ndarray, mass: np.ndarray) -> np.ndarray:
    transverse = np.sqrt(mass**2 + px**2 + py**2)
    return np.stack([transverse * np.cosh(y), px, py, transverse * np.sinh(y)], axis=1)


def _jet(pt: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return _along(pt, random.normal(0, 1, len(pt)), np.zeros(len(pt)), random)


def _balance(others: list[np.ndarray], mass: np.ndarray, random) -> np.ndarray:
    """The four-momentum that makes all transverse momenta add up to zero."""
    total = sum(others)
    return _four(-total[:, 1], -total[:, 2], random.normal(0, 0.8, len(total)), mass)


def decay(
    parent: np.ndarray, mass_1: np.ndarray, mass_2: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Four-momenta (n, 4) of two products, isotropic in the rest frame of `parent` (n, 4).

    There each has the momentum sqrt((M^2 - (m1 + m2)^2) (M^2 - (m1 - m2)^2)) / 2M.
    """
    mass = np.sqrt(np.maximum(parent[:, 0] ** 2 - np.sum(parent[:, 1:] ** 2, axis=1), 0))
    above = (mass**2 - (mass_1 + mass_2) ** 2) * (mass**2 - (mass_1 - mass_2) ** 2)
    momentum = np.sqrt(above) / (2 * mass)
    cosine = random.uniform(-1, 1, len(parent))
    phi = random.uniform(-np.pi, np.pi, len(parent))
    sine = np.sqrt(1 - cosine**2)
    direction = np.stack([sine * np.cos(phi), sine * np.sin(phi), cosine], axis=1)
    first = np.empty_like(parent)
    first[:, 0] = np.sqrt(mass_1**2 + momentum**2)
    first[:, 1:] = momentum[:, None] * direction
    first = _boosted(first, parent, mass)
    return first, parent - first


def _boosted(p: np.ndarray, parent: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Boost `p` from the rest frame of `parent` to the frame where `parent` moves."""
    along = np.einsum("ij,ij->i", p[:, 1:], parent[:, 1:])
    energy = (parent[:, 0] * p[:, 0] + along) / mass
    share = (p[:, 0] + energy) / (parent[:, 0] + mass)
    return np.concatenate([energy[:, None], p[:, 1:] + share[:, None] * parent[:, 1:]], axis=1)
