"""Electron showers in a granular calorimeter: simulated here, or read from files.

    made = showers.simulate(range(1000), seed=0)      # energies (1000,), voxels (1000, 25, 25, 25)
    showers.write("showers.h5", made)                 # the layout of CaloChallenge's files
    dataset = data.load("showers")                    # for training; "small-showers": 13^3

The same seed gives the same showers on any number of ranks: shower i depends on (seed, i) alone.
calorimeter.py and shower_physics.py have the physics, shower_kernel.py draws from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from math import radians
from pathlib import Path

import numpy as np

from tutorial_dl.data.calorimeter import GRANULAR, SMALL, Calorimeter
from tutorial_dl.data.dataset import Data, Dataset
from tutorial_dl.data.files import DataError
from tutorial_dl.data.hdf5_dataset import write_hdf5

LOW, HIGH = 10.0, 500.0  # GeV, the range of energies
VOXELS, ENERGIES = "showers", "incident_energies"  # datasets of CaloChallenge's files


@dataclass(frozen=True)
class Showers:
    """n showers.

    Attributes:
        energies: Of the particles that caused them, GeV, float64 (n,).
        voxels: Energies deposited, MeV, float32 (n, layers, x, y).
        shapes: Depth of the maximum (in X0) and exponent of each shower's gamma profile, (n, 2);
            None if they were read from a file.
    """

    energies: np.ndarray
    voxels: np.ndarray
    shapes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.energies)


def simulate(
    indices: Iterable[int],
    seed: int = 0,
    calorimeter: Calorimeter = GRANULAR,
    energies: tuple[float, float] = (LOW, HIGH),
    angle: float = 0.0,
) -> Showers:
    """Simulate the showers of these numbers.

    Args:
        indices: Numbers of the showers, at least 0: their places in the whole set, on all ranks.
        seed: Seed of all random numbers; shower i depends on (seed, i) alone.
        calorimeter: What the particles enter.
        energies: Least and greatest energy of the particles, GeV; uniform in between. The
            parametrisation was made for 1 to 500 GeV.
        angle: Degrees between the particles and the z axis, in the plane of x and z.

    Raises:
        ValueError: If a number is out of its range.
    """
    from tutorial_dl.data import shower_kernel

    indices = np.asarray(list(indices) if isinstance(indices, range) else indices, np.int64)
    low, high = map(float, energies)
    if not 1 <= low <= high <= 1000:
        raise ValueError(
            f"energies must be from 1 to 1000 GeV, the lower one first, got {energies}"
        )
    if not -60 <= angle <= 60:
        raise ValueError(f"angle must be from -60 to 60 degrees, got {angle}")
    if seed < 0 or indices.min(initial=0) < 0:
        raise ValueError(f"seed and indices must be at least 0, got seed {seed}")
    n = len(indices)
    made = Showers(np.empty(n), np.empty((n, *calorimeter.shape), np.float32), np.empty((n, 2)))
    shower_kernel.simulate(
        indices, seed, low, high, radians(angle), calorimeter.numbers,
        made.energies, made.shapes, made.voxels,
    )  # fmt: skip
    return made


def write(path: str | os.PathLike, showers: Showers) -> Path:
    """Write an HDF5 file in the layout of CaloChallenge (arXiv 2410.21611), complete or not at all.

    "showers" (n, voxels) and "incident_energies" (n, 1), both in MeV; a voxel's place is
    (layer * x + its x) * y + its y.
    """
    n = len(showers)
    energies = (1000 * showers.energies).astype(np.float32).reshape(n, 1)
    return write_hdf5(Data(showers.voxels.reshape(n, -1), energies), path, VOXELS, ENERGIES)


def read(path: str | os.PathLike, shape: tuple[int, int, int] | None = None) -> Showers:
    """Read such a file.

    Args:
        path: A file of `write`, or of CaloChallenge.
        shape: (layers, x, y) of a shower; None: that of `GRANULAR` or `SMALL`, by the number of
            voxels. CaloChallenge's data set 2 has (45, 16, 9), data set 3 has (45, 50, 18): layers,
            angular and radial bins.

    Raises:
        DataError: If the file has no such datasets, or another number of voxels.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            missing = [name for name in (VOXELS, ENERGIES) if name not in file]
            if missing:
                raise DataError(f"{path} has no dataset {missing[0]!r}; it has {sorted(file)}")
            voxels, energies = file[VOXELS][:].astype(np.float32), file[ENERGIES][:]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error}") from None
    number = int(np.prod(voxels.shape[1:]))
    if shape is None:
        known = {int(np.prod(c.shape)): c.shape for c in (GRANULAR, SMALL)}
        if number not in known:
            raise DataError(
                f"{path} has {number} voxels per shower: give shape=(layers, x, y), which multiply "
                f"to that; known without it: {sorted(known)}"
            )
        shape = known[number]
    if int(np.prod(shape)) != number or len(voxels) != len(energies):
        raise DataError(
            f"{path} has {len(voxels)} showers of {number} voxels and {len(energies)} energies; "
            f"expected as many energies as showers, and {tuple(shape)} voxels"
        )
    return Showers(energies.reshape(-1) / 1000.0, voxels.reshape(len(voxels), *shape))


def as_data(showers: Showers) -> Data:
    """Inputs: voxels in GeV, float32 (n, layers, x, y); targets: energies in GeV, float32 (n,)."""
    return Data.of(showers.voxels / np.float32(1000), showers.energies.astype(np.float32))


def showers(n: int = 1000, seed: int = 0, calorimeter: Calorimeter = GRANULAR) -> Dataset:
    """Simulate `n` showers for training and a quarter as many others for validation.

    Returns:
        Dataset of inputs float32 (n, layers, x, y), the energy in each voxel, and targets float32
        (n,), the energy of the particle, uniform from 10 to 500; all in GeV.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    kept = max(1, n // 4)
    parts = (range(n), range(n, n + kept))
    train, validation = (as_data(simulate(part, seed, calorimeter)) for part in parts)
    name = "showers" if calorimeter == GRANULAR else "small-showers"
    return Dataset(name, train, validation)


def small_showers(n: int = 6000, seed: int = 0) -> Dataset:
    """The same in 13 x 13 x 13 larger voxels, on which a network trains in minutes."""
    return showers(n, seed, SMALL)
