"""Isolation sums: the pT close to a particle, small for a W's lepton, large within a jet."""

from __future__ import annotations

import numpy as np

from numba_kernels.jit.compile import compiled


def isolation_sums(
    starts: np.ndarray,
    pt: np.ndarray,
    eta: np.ndarray,
    phi: np.ndarray,
    group: np.ndarray,
    cone: float,
) -> np.ndarray:
    """Sum the other particles' pT within sqrt(d_eta^2 + d_phi^2) < cone, by group: (N, 3).

    Args:
        starts: (events + 1,): event e has the particles starts[e] up to starts[e + 1].
        pt, eta, phi: (N,).
        group: (N,), the sum in which a particle counts: 0, 1 or 2; -1 counts in none.
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
