"""Quality of generated showers, as the CaloChallenge measures it (arXiv 2410.21611, section 4).

    report(generated, simulated, energies, again)

compares generated showers with simulated ones of the same energies: separation power of histograms,
Frechet physics distance, and the AUC of a classifier, all of `features`. Two baselines say what
these numbers mean: other simulated showers in place of the generated ones (the floor: nothing can
be better), and a fake that is the mean shower, scaled to each energy (the ceiling: its means are
right, and nothing else).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorial_dl.quality.frechet import extrapolated
from tutorial_dl.quality.separation import separations
from tutorial_dl.quality.two_sample_classifier import auc

CONTAINED = 0.9  # the share of the energy in the layers whose mean profile is compared


def features(showers: np.ndarray, energies: np.ndarray) -> dict[str, np.ndarray]:
    """What histograms are made of, by name, each (n, number of them).

    Args:
        showers: Voxels, (n, layers, x, y), in the unit of `energies`.
        energies: Of the particles, (n,).

    Returns:
        "energy ratio": energy in all voxels over the particle's; "layer energy": share of the
        particle's energy in each layer; "centre x", "centre y", "width x", "width y" of each layer,
        in voxels from the middle (0 for an empty layer); "sparsity": share of empty voxels.
    """
    x = np.asarray(showers, np.float64)
    energies = np.asarray(energies, np.float64).reshape(-1, 1)
    layers = x.sum(axis=(2, 3))
    known = np.where(layers > 0, layers, 1)
    found = {"energy ratio": layers.sum(axis=1, keepdims=True) / energies,
             "layer energy": layers / energies}  # fmt: skip
    for name, axis in (("x", 3), ("y", 2)):
        along = x.sum(axis=axis)
        place = np.arange(along.shape[-1]) - (along.shape[-1] - 1) / 2
        centre = along @ place / known
        found[f"centre {name}"] = centre
        found[f"width {name}"] = np.sqrt(np.maximum(along @ place**2 / known - centre**2, 0))
    found["sparsity"] = (x == 0).mean(axis=(2, 3))
    return found


def flat(found: dict[str, np.ndarray]) -> np.ndarray:
    """All features of `features` beside each other, (n, k)."""
    return np.concatenate(list(found.values()), axis=1)


def mean_shower(showers: np.ndarray, energies: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The ceiling's fake: the mean of showers / energy, times each energy asked for."""
    mean = (showers / energies.reshape(-1, 1, 1, 1)).mean(axis=0, dtype=np.float64)
    return (asked.reshape(-1, 1, 1, 1) * mean).astype(showers.dtype)


def compared(generated: np.ndarray, simulated: np.ndarray, energies: np.ndarray) -> dict[str, Any]:
    """Of generated and simulated showers (n, layers, x, y) of the same energies (n,).

    Returns:
        "separation": mean over all histograms, "separation by feature", "frechet", "auc".
    """
    ours, theirs = features(generated, energies), features(simulated, energies)
    by_name = {name: float(separations(ours[name], theirs[name]).mean()) for name in ours}
    every = [flat(ours), flat(theirs)]
    return {
        "separation": float(separations(*every).mean()),
        "separation by feature": by_name,
        "frechet": extrapolated(*every),
        "auc": auc(*every),
    }


def report(
    generated: np.ndarray, simulated: np.ndarray, energies: np.ndarray, again: np.ndarray
) -> dict[str, Any]:
    """`compared` of the generated showers, and of both baselines; and the mean profile.

    Args:
        generated, simulated, again: Showers of the same energies; `again` are simulated, too, with
            other random numbers.

    Returns:
        {"generated": ..., "simulation again": ..., "mean shower": ..., "profile": the largest
        relative error of the mean energy among the layers that hold 90% of the energy}.
    """
    fake = mean_shower(again, energies, energies)
    found = {"generated": generated, "simulation again": again, "mean shower": fake}
    rows = {name: compared(one, simulated, energies) for name, one in found.items()}
    return rows | {"profile": profile_error(generated, simulated)}


def profile_error(generated: np.ndarray, simulated: np.ndarray) -> float:
    """Largest relative error of the mean energy in a layer, among those that hold 90% of it."""
    ours, theirs = (
        s.mean(axis=0, dtype=np.float64).sum(axis=(1, 2)) for s in (generated, simulated)
    )
    order = np.argsort(theirs)[::-1]
    needed = 1 + np.searchsorted(np.cumsum(theirs[order]), CONTAINED * theirs.sum())
    kept = order[:needed]
    return float(np.max(np.abs(ours[kept] / theirs[kept] - 1)))


def resolution_error(
    generated: np.ndarray, simulated: np.ndarray, energies: np.ndarray, parts: int = 3
) -> float:
    """Largest relative error of the resolution, in at most `parts` equally large ranges of energy.

    The resolution is the standard deviation over the mean of the energy in all voxels over the
    particle's. Of n showers in a range, its own statistical error is about 1 / sqrt(n). Where no
    energy is generated at all, the error is 1.
    """
    energies, found = np.ravel(energies), [0.0]
    parts = max(1, min(parts, len(energies) // 2))
    ratios = [s.sum(axis=(1, 2, 3), dtype=np.float64) / energies for s in (generated, simulated)]
    for here in np.array_split(np.argsort(energies), parts):
        means = [ratio[here].mean() for ratio in ratios]
        ours, theirs = (
            ratio[here].std() / mean if mean > 0 else 0.0
            for ratio, mean in zip(ratios, means, strict=True)
        )
        if theirs > 0:  # a single shower has none
            found.append(abs(ours / theirs - 1))
    return float(np.max(found))


def response(showers: np.ndarray, energy: float) -> tuple[float, float]:
    """(mean, standard deviation over the mean) of the energy in all voxels over `energy`."""
    ratio = showers.sum(axis=(1, 2, 3), dtype=np.float64) / energy
    return float(ratio.mean()), float(ratio.std() / ratio.mean())
