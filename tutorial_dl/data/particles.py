"""From the few partons of a hard process to the hundreds of particles that a detector sees.

A quark or gluon is never seen: it becomes a jet, a spray of hadrons along its direction. Here its
momentum p is divided at random, and every hadron gets a transverse kick kT of about 0.35 GeV:

    p_i = z_i p + kT_i,    sum z_i = 1,    sum kT_i = 0,    so that  sum p_i = p   exactly

so the larger p_i, the closer its direction is to that of p. In jets of bottom quarks some particles
come from a point a few millimetres away (a bottom hadron lives for 1.5e-12 s), and some of those
are leptons. Tens of soft particles come from the rest of the two protons and from other collisions
at the same time (pile-up; these begin elsewhere along the beam). The detector sees particles that
are neither too close to the beam nor too slow, misses some charged ones, leaves out those that come
from another collision, and measures momenta with the precision of a track (1%) or a calorimeter
(3 to 100% / sqrt(E)); directions are taken as exact.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from numba_kernels.jit.compile import compiled
from tutorial_dl.data import collisions as hard

CHARGED_HADRON, NEUTRAL_HADRON, PHOTON, ELECTRON, MUON = range(5)
MASS = np.array([0.13957, 0.49761, 0.0, 0.000511, 0.10566])  # GeV: pi+, K_L, photon, e, mu
PRIMARY_SHARE = 0.4  # share of soft particles that come from the event; the rest is pile-up
KICK = 0.35  # GeV
LIFETIME = 0.045  # cm: c times the lifetime of a bottom hadron
CONE = 0.3  # radius of isolation sums, sqrt(d_eta^2 + d_phi^2)

FEATURES = (
    "energy", "px", "py", "pz", "pt", "eta", "phi", "log_pt", "x", "y", "z",
    "isolation_charged", "isolation_neutral", "isolation_photon", "charge",
    "is_charged_hadron", "is_neutral_hadron", "is_photon", "is_electron", "is_muon",
)  # fmt: skip
GEV = 1 / 10  # energies, momenta and isolation sums are in units of 10 GeV


@dataclass
class Particles:
    """Particles of all events in one list."""

    event: np.ndarray  # (N,), index of the event
    parton: np.ndarray  # (N,), the place of the parton it comes from; -1 for soft particles
    momentum: np.ndarray  # (N, 3), GeV
    kind: np.ndarray  # (N,), CHARGED_HADRON to MUON
    charge: np.ndarray  # (N,)
    origin: np.ndarray  # (N, 3), cm from the event's primary vertex

    def __getitem__(self, which: np.ndarray) -> Particles:
        return Particles(*(getattr(self, f.name)[which] for f in fields(self)))

    def __len__(self) -> int:
        return len(self.event)

    @property
    def energy(self) -> np.ndarray:
        return np.sqrt(MASS[self.kind] ** 2 + np.sum(self.momentum**2, axis=1))

    @property
    def pt(self) -> np.ndarray:
        return np.hypot(self.momentum[:, 0], self.momentum[:, 1])

    @property
    def eta(self) -> np.ndarray:
        """Pseudorapidity: asinh(pz / pT), 0 perpendicular to the beam."""
        return np.arcsinh(self.momentum[:, 2] / np.maximum(self.pt, 1e-9))

    @property
    def phi(self) -> np.ndarray:
        return np.arctan2(self.momentum[:, 1], self.momentum[:, 0])


def produced(partons: hard.Partons, soft: float, random: np.random.Generator) -> Particles:
    """Produce all particles: those of jets, leptons, and on average `soft` others.

    Neutrinos leave no trace in the detector and are left out.
    """
    parts = [_jets(partons, random), _leptons(partons), _soft(len(partons.kind), soft, random)]
    names = [field.name for field in fields(Particles)]
    return Particles(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def _jets(partons: hard.Partons, random: np.random.Generator) -> Particles:
    event, place = np.nonzero(np.isin(partons.kind, (hard.QUARK, hard.GLUON, hard.BOTTOM)))
    axis, flavour = partons.momentum[event, place, 1:], partons.kind[event, place]  # (jets, 3)
    size = np.linalg.norm(axis, axis=1)
    # The mean number grows with the logarithm of the jet's pT, and is 1.5 times higher for gluons.
    mean = 1 + np.log1p(np.hypot(axis[:, 0], axis[:, 1]) / 3)
    mean *= np.where(flavour == hard.GLUON, 5.5, 3.7)
    count = 2 + random.poisson(mean)
    jet = np.repeat(np.arange(len(count)), count)  # the jet of each particle
    starts = np.cumsum(count) - count

    share = random.exponential(1, len(jet)) ** 1.5
    share /= np.add.reduceat(share, starts)[jet]
    kick = KICK * random.normal(size=(len(jet), 3))
    unit = axis / size[:, None]
    kick -= np.einsum("ij,ij->i", kick, unit[jet])[:, None] * unit[jet]  # across the axis
    kick -= share[:, None] * np.add.reduceat(kick, starts)[jet]
    momentum = share[:, None] * axis[jet] + kick

    kind, charge = _hadrons(len(jet), random)
    origin = np.zeros((len(jet), 3))
    from_b = (flavour == hard.BOTTOM)[jet] & (random.random(len(jet)) < 0.5)
    flight = LIFETIME * random.exponential(1, len(count)) * 0.7 * size / 5.3  # c t gamma beta
    origin[from_b] = (flight[:, None] * unit)[jet[from_b]]
    lepton = from_b & (charge != 0) & (random.random(len(jet)) < 0.06)
    kind[lepton] = random.choice((ELECTRON, MUON), lepton.sum())
    return Particles(event[jet], place[jet], momentum, kind, charge, origin)


def _hadrons(n: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    kind = random.choice((CHARGED_HADRON, PHOTON, NEUTRAL_HADRON), n, p=(0.62, 0.27, 0.11))
    return kind, np.where(kind == CHARGED_HADRON, random.choice((-1, 1), n), 0)


def _leptons(partons: hard.Partons) -> Particles:
    event, place = np.nonzero(np.isin(partons.kind, (hard.ELECTRON, hard.MUON)))
    kind = np.where(partons.kind[event, place] == hard.ELECTRON, ELECTRON, MUON)
    momentum, charge = partons.momentum[event, place, 1:], partons.charge[event, place]
    return Particles(event, place, momentum, kind, charge, np.zeros((len(event), 3)))


def _soft(events: int, mean: float, random: np.random.Generator) -> Particles:
    count = random.poisson(mean, events)
    event, n = np.repeat(np.arange(events), count), int(count.sum())
    pt = 0.3 + random.exponential(0.6, n)
    phi, eta = random.uniform(-np.pi, np.pi, n), random.uniform(-3, 3, n)
    momentum = np.stack([pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)], axis=1)
    kind, charge = _hadrons(n, random)
    origin = np.zeros((n, 3))
    origin[:, 2] = 5.0 * random.normal(size=n) * (random.random(n) >= PRIMARY_SHARE)
    return Particles(event, np.full(n, -1), momentum, kind, charge, origin)


def measured(particles: Particles, random: np.random.Generator) -> Particles:
    """What the detector measures: particles with pT above 1 GeV and |eta| below 2.5, smeared."""
    charged = particles.charge != 0
    seen = (particles.pt > 1.0) & (np.abs(particles.eta) < 2.5)
    seen &= ~charged | (random.random(len(particles)) < 0.95)
    x, y, z = particles.origin.T
    seen &= ~charged | (np.hypot(x, y) > 0.005) | (np.abs(z) < 0.1)  # drops pile-up
    found = particles[seen]
    energy, kind = found.energy, found.kind
    precision = np.where(found.charge != 0, np.hypot(0.01, 0.0002 * found.pt), 0.0)
    precision[kind == PHOTON] = np.hypot(0.03 / np.sqrt(energy), 0.005)[kind == PHOTON]
    neutral = kind == NEUTRAL_HADRON
    precision[neutral] = np.hypot(1 / np.sqrt(energy), 0.05)[neutral]
    factor = np.maximum(1 + precision * random.normal(size=len(found)), 0.2)
    found.momentum = found.momentum * factor[:, None]
    # A track gives its origin to 20 micrometres; a calorimeter gives none.
    track = (found.charge != 0)[:, None]
    found.origin = track * (found.origin + 0.002 * random.normal(size=found.origin.shape))
    return found


def sequences(particles: Particles, events: int, places: int) -> np.ndarray:
    """Each event's particles by falling pT, then zeros: float32 (events, places, 20).

    If an event has more particles than places, those of highest pT are kept.
    """
    found = particles[np.lexsort((-particles.pt, particles.event))]
    starts = np.searchsorted(found.event, np.arange(events + 1))
    pt, eta, phi = found.pt, found.eta, found.phi
    group = np.array([0, 1, 2, -1, -1])[found.kind]  # leptons count in no sum
    sums = isolation_sums(starts, pt, eta, phi, group, CONE)
    place = np.arange(len(found)) - starts[found.event]
    kept = place < places
    columns = [
        GEV * found.energy, *(GEV * found.momentum.T), GEV * pt, eta, phi,
        np.log10(np.maximum(pt, 1e-9)), *found.origin.T, *(GEV * sums.T), found.charge,
        *(found.kind == kind for kind in range(5)),
    ]  # fmt: skip
    out = np.zeros((events, places, len(FEATURES)), np.float32)
    for feature, column in enumerate(columns):
        out[found.event[kept], place[kept], feature] = column[kept]
    return out


def isolation_sums(starts, pt, eta, phi, group, cone: float) -> np.ndarray:
    """Sum the other particles' pT within sqrt(d_eta^2 + d_phi^2) < cone, by group: (N, 3).

    The sums are small for a W's lepton, large within a jet. Event e has the particles starts[e] up
    to starts[e + 1]; `group` is the sum in which a particle counts, 0, 1 or 2, or -1 for none.
    """
    sums = np.zeros((len(pt), 3))
    _sum_pairs(starts, pt, eta, phi, group, cone, sums)
    return sums


@compiled
def _sum_pairs(starts, pt, eta, phi, group, cone, sums):
    for event in range(starts.size - 1):
        for i in range(starts[event], starts[event + 1]):
            for j in range(starts[event], i):
                d_phi = abs(phi[i] - phi[j])
                if d_phi > np.pi:
                    d_phi = 2 * np.pi - d_phi
                if d_phi**2 + (eta[i] - eta[j]) ** 2 < cone**2:
                    if group[j] >= 0:
                        sums[i, group[j]] += pt[j]
                    if group[i] >= 0:
                        sums[j, group[i]] += pt[i]
