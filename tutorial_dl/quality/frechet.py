"""Frechet distance of two sets of features: of the normal distributions with their moments.

    |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2))

(Heusel et al., arXiv 1706.08500.) With N samples it is too large by a term in 1/N, so it is taken
at several N and extrapolated to infinity (Chong and Forsyth, arXiv 1911.07023); for physics, with
features of showers, it is called FPD (Kansal et al., arXiv 2211.10295).
"""

import numpy as np

SIZES, DRAWS = 6, 4  # numbers of samples, and draws of each, for the extrapolation


def of_moments(m1: np.ndarray, s1: np.ndarray, m2: np.ndarray, s2: np.ndarray) -> float:
    """The distance of means (k,) and covariances (k, k)."""
    # tr (S1 S2)^(1/2): the roots of the eigenvalues of S1^(1/2) S2 S1^(1/2), which are >= 0
    values, vectors = np.linalg.eigh(s1)
    root = vectors * np.sqrt(values.clip(0)) @ vectors.T
    cross = np.sqrt(np.linalg.eigvalsh(root @ s2 @ root).clip(0)).sum()
    return float(np.sum((m1 - m2) ** 2) + np.trace(s1) + np.trace(s2) - 2 * cross)


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """The distance of two sets (n, k) and (m, k), with the bias of their numbers of samples."""
    sets = (np.asarray(x, np.float64) for x in (first, second))
    moments = [(x.mean(axis=0), np.atleast_2d(np.cov(x, rowvar=False))) for x in sets]
    return of_moments(*moments[0], *moments[1])


def extrapolated(first: np.ndarray, second: np.ndarray, seed: int = 0) -> float:
    """The distance at infinitely many samples; features are standardised by `second` first.

    It may lie slightly below 0 for equal distributions.
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    mean, spread = second.mean(axis=0), second.std(axis=0)
    kept = spread > 1e-9 * (np.abs(mean) + 1e-9)
    first, second = ((x[:, kept] - mean[kept]) / spread[kept] for x in (first, second))
    random, most = np.random.default_rng(seed), min(len(first), len(second))
    inverse, found = [], []
    for size in np.unique(np.linspace(most / 3, most, SIZES).astype(int)):
        for _ in range(DRAWS):
            parts = (x[random.permutation(len(x))[:size]] for x in (first, second))
            inverse.append(1 / size)
            found.append(distance(*parts))
    return float(np.polyfit(inverse, found, 1)[1])
