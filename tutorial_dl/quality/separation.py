"""Separation power of two histograms: how far apart they are, from 0 (alike) to 1 (disjoint)."""

import numpy as np

BINS = 30


def separation(first: np.ndarray, second: np.ndarray) -> float:
    """1/2 sum (h1 - h2)^2 / (h1 + h2) of two histograms, each normalised to 1, (bins,).

    CaloChallenge (arXiv 2410.21611), equation of section 4.1; from Diefenbacher et al., arXiv
    2009.03796.

    >>> separation(np.array([1, 1]), np.array([2, 2])), separation(np.eye(2)[0], np.eye(2)[1])
    (0.0, 1.0)
    """
    h1, h2 = (np.asarray(h, np.float64) / np.sum(h) for h in (first, second))
    total = h1 + h2
    return float(0.5 * np.sum((h1 - h2) ** 2 / np.where(total > 0, total, 1)))


def separations(generated: np.ndarray, simulated: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Separation power of each feature, (k,), of two sets (n, k) and (m, k).

    The bins have equal widths between the 0.5th and the 99.5th percentile of what is simulated;
    what lies outside counts in the first and the last bin. With n samples each of one distribution,
    its mean is about (bins that are used - 1) / (2 n).
    """
    found = []
    for a, b in zip(np.asarray(generated).T, np.asarray(simulated).T, strict=True):
        low, high = np.percentile(b, [0.5, 99.5])
        if high <= low:  # what differs, on either side, has a bin of its own
            gap = 1e-9 * max(1.0, abs(low))
            low, high = low - gap, low + gap
        edges = np.linspace(low, high, bins + 1)
        counts = [np.histogram(np.clip(one, edges[0], edges[-1]), edges)[0] for one in (a, b)]
        found.append(separation(*counts))
    return np.array(found)
