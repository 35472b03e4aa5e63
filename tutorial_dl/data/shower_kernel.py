"""Compiled: draws showers of the parametrisation in shower_physics.py, voxel by voxel.

The random numbers of a shower depend on (seed, index of the shower) alone (counted_random.py).
"""

from math import cos, erfc, exp, floor, lgamma, log, sqrt, tan

import numpy as np

from numba_kernels.jit.compile import compiled
from tutorial_dl.data.calorimeter import DEPTH, LENGTH, NOISE, RESOLUTION, THRESHOLD, WIDTH
from tutorial_dl.data.counted_random import GOLDEN, SECOND, gamma, mixed, normal, uniform
from tutorial_dl.data.shower_physics import longitudinal, radial, relative_depth, spots


@compiled
def below(shape, x):
    """The regularised incomplete gamma function P(shape, x): the energy share up to b t = x.

    By its series, or by the continued fraction of 1 - P (DLMF 8.11.4, 8.9.2; Lentz's method).
    """
    if x <= 0:
        return 0.0
    front = exp(shape * log(x) - x - lgamma(shape))
    if x < shape + 1:
        term = total = 1 / shape
        n = shape
        while term > 1e-15 * total:
            n += 1
            term *= x / n
            total += term
        return front * total
    b = x + 1 - shape
    c, d = 1e300, 1 / b
    h = d
    for i in range(1, 1000):
        a = -i * (i - shape)
        b += 2
        d = 1 / (a * d + b)
        c = b + a / c
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return 1 - front * h


@compiled
def simulate(indices, seed, low, high, angle, medium, energies, shapes, voxels):
    """Fill `energies` (n,) in GeV, `shapes` (n, 2) with T and a, `voxels` (n, layers, x, y) in MeV.

    indices (n,) are the showers' numbers; energies are uniform in [low, high] GeV; the particle
    comes at `angle` (radians) to the z axis, in the plane of x and z, and meets the middle of the
    front face.
    """
    for i in range(indices.size):
        state = np.empty(1, np.uint64)
        state[0] = mixed(mixed(np.uint64(seed) + GOLDEN) + np.uint64(indices[i]) * SECOND)
        energies[i] = low + (high - low) * uniform(state)
        shower(state, energies[i], angle, medium, shapes[i], voxels[i])


@compiled
def shower(state, energy, angle, medium, shape, voxels):
    """One shower of `energy` GeV; see `simulate`."""
    layers, cells = voxels.shape[0], voxels.shape[1]
    mean_t, mean_a, spread_t, spread_a, correlation = longitudinal(energy, medium)
    first, second = normal(state), normal(state)
    second = correlation * first + sqrt(1 - correlation**2) * second
    maximum = exp(mean_t + spread_t * first)
    a = max(exp(mean_a + spread_a * second), 1.05)  # (at 10 GeV, some 4 sigma below the mean)
    shape[0], shape[1] = maximum, a
    number, maximum_s, a_s = spots(energy, maximum, a, medium)
    b, b_s = (a - 1) / maximum, (a_s - 1) / maximum_s

    voxels[:] = 0
    step = medium[DEPTH] / layers / cos(angle)  # X0 along the axis
    per_variance = medium[RESOLUTION] ** 2
    side = cells / medium[WIDTH]  # cells per Moliere radius
    done = done_s = 0.0
    for layer in range(layers):
        to = below(a, b * step * (layer + 1))
        to_s = below(a_s, b_s * step * (layer + 1))
        mean, count = energy * (to - done), number * (to_s - done_s)
        done, done_s = to, to_s
        if mean <= 0:
            continue
        # Sampling fluctuations: a gamma distribution of this mean and the variance c^2 mean
        deposit = 1000 * per_variance * gamma(state, mean / per_variance)  # MeV
        here = max(1, int(count + 0.5))
        tau = relative_depth(step * (layer + 0.5), maximum, a, mean_a)
        core, tail, share = radial(energy, tau, medium)
        center = tan(angle) * medium[LENGTH] * (layer + 0.5) / layers
        for _ in range(here):
            radius = core if uniform(state) < share else tail
            while True:  # a point in the unit circle: w is uniform, and r = R sqrt(w / (1 - w))
                x, y = 2 * uniform(state) - 1, 2 * uniform(state) - 1
                w = x * x + y * y
                if w < 1:
                    break
            reach = radius / sqrt(1 - w)
            column = floor(cells / 2 + side * (center + reach * x / cos(angle)))
            row = floor(cells / 2 + side * reach * y)
            if 0 <= column < cells and 0 <= row < cells:
                voxels[layer, column, row] += deposit / here
    if medium[NOISE] > 0 or medium[THRESHOLD] > 0:
        read_out(state, medium[NOISE], medium[THRESHOLD], voxels.reshape(-1))


@compiled
def read_out(state, noise, threshold, voxels):
    """Add normal noise to every voxel (n,), then drop those below the threshold.

    Most voxels are empty, and their noise alone seldom reaches the threshold: then one uniform
    number tells whether it does, and only if so a number of the normal tail beyond it is drawn
    (Marsaglia, Technometrics 6, 1964).
    """
    beyond = threshold / noise if noise > 0 else 0.0
    chance = 0.5 * erfc(beyond / sqrt(2.0))
    for j in range(voxels.size):
        if noise == 0:
            value = np.float64(voxels[j])
        elif voxels[j] > 0 or beyond < 1:
            value = voxels[j] + noise * normal(state)
        elif uniform(state) < chance:
            while True:
                z = sqrt(beyond**2 - 2 * log(1 - uniform(state)))
                if uniform(state) * z < beyond:
                    break
            value = noise * z
        else:
            value = 0.0
        voxels[j] = value if value >= threshold else 0.0
