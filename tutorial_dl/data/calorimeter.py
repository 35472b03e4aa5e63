"""`Calorimeter`: what showers are made in, and the properties that the parametrisation needs of it.

A sandwich of absorber and sensors behaves like one effective material: hep-ex/0001020, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SCATTERING = 21.2  # MeV, the scale energy E_s of multiple scattering (section 2)


@dataclass(frozen=True)
class Material:
    """Properties of an element, https://pdg.lbl.gov (Atomic and nuclear properties)."""

    charge: float  # Z
    mass: float  # A
    density: float  # g/cm^3
    radiation_length: float  # g/cm^2

    @property
    def critical_energy(self) -> float:
        """MeV: 2.66 (X0 Z / A)^1.1, hep-ex/0001020, section 2."""
        return 2.66 * (self.radiation_length * self.charge / self.mass) ** 1.1


TUNGSTEN = Material(74, 183.84, 19.30, 6.76)
SILICON = Material(14, 28.085, 2.329, 21.82)


@dataclass(frozen=True)
class Calorimeter:
    """Absorber and sensors in turn, read out in `layers` x `cells` x `cells` voxels.

    The default is like the electromagnetic calorimeter planned for CLIC, whose 25^3 showers the
    3DGAN papers use (cells of 5.1 mm, 25 layers; arXiv 1202.5940), with equal layers. Resolution,
    noise and threshold are those measured with CALICE's prototype (arXiv 0811.2354): 16.6% /
    sqrt(E), signal to noise 7.6, hits above 0.6 of a minimum ionising particle (MIP), which looks
    like some 10 MeV of a shower here.
    """

    layers: int = 25
    cells: int = 25  # along x, and along y
    depth: float = 9.25  # cm; 25 times 3.2 mm of tungsten and 0.5 mm of silicon
    width: float = 12.75  # cm, along x and along y
    absorber_thickness: float = 0.32  # cm, of one plate
    sensor_thickness: float = 0.05  # cm, of the sensor behind it
    absorber: Material = TUNGSTEN
    sensor: Material = SILICON
    resolution: float = 0.166  # c in c / sqrt(E / GeV)
    noise: float = 1.3  # MeV, standard deviation in each voxel
    threshold: float = 6.0  # MeV; what is below reads 0

    def __post_init__(self) -> None:
        if self.layers < 1 or self.cells < 1:
            raise ValueError(
                f"layers and cells must be at least 1, got {self.layers} and {self.cells}"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(layers, cells, cells): depth, x, y."""
        return self.layers, self.cells, self.cells

    # The mixture (section 4): weights by mass of absorber and sensor, and what follows from them

    @property
    def _weights(self) -> np.ndarray:
        thickness = np.array([self.absorber_thickness, self.sensor_thickness])
        mass = thickness * [self.absorber.density, self.sensor.density]
        return mass / mass.sum()

    @property
    def charge(self) -> float:
        """Z: the mean by mass."""
        return float(self._weights @ [self.absorber.charge, self.sensor.charge])

    @property
    def density(self) -> float:
        """g/cm^3."""
        plates, sensors = self.absorber_thickness, self.sensor_thickness
        mass = plates * self.absorber.density + sensors * self.sensor.density
        return mass / (plates + sensors)

    @property
    def radiation_length(self) -> float:
        """X0 in cm: 1 / X0 = sum of w_i / X0_i, in g/cm^2."""
        inverse = self._weights @ [1 / m.radiation_length for m in (self.absorber, self.sensor)]
        return float(1 / inverse / self.density)

    @property
    def _loss(self) -> float:
        """Sum of w_i Ec_i / X0_i, MeV cm^2/g."""
        both = (self.absorber, self.sensor)
        return float(self._weights @ [m.critical_energy / m.radiation_length for m in both])

    @property
    def critical_energy(self) -> float:
        """MeV: X0 times the sum of w_i Ec_i / X0_i."""
        return self.radiation_length * self.density * self._loss

    @property
    def moliere_radius(self) -> float:
        """R_M in cm: E_s over the sum of w_i Ec_i / X0_i."""
        return SCATTERING / self._loss / self.density

    @property
    def sampling_frequency(self) -> float:
        """F_S: X0 over the thickness of a plate and its sensor."""
        return self.radiation_length / (self.absorber_thickness + self.sensor_thickness)

    @property
    def electron_to_mip(self) -> float:
        """e/mip, the signal of a shower over that of MIPs of the same energy."""
        return 1 / (1 + 0.007 * (self.absorber.charge - self.sensor.charge))

    @property
    def numbers(self) -> np.ndarray:
        """What the compiled functions need of it, float64 (10,); see MEDIUM."""
        return np.array([
            self.charge, self.critical_energy / 1000, self.sampling_frequency, self.electron_to_mip,
            self.depth / self.radiation_length, self.width / self.moliere_radius,
            self.depth / self.moliere_radius, self.resolution, self.noise, self.threshold,
        ])  # fmt: skip


# Places in Calorimeter.numbers: Z, E_c in GeV, F_S, e/mip, depth in X0, width and depth in R_M, c,
# noise and threshold in MeV
CHARGE, CRITICAL, FREQUENCY, RATIO, DEPTH, WIDTH, LENGTH, RESOLUTION, NOISE, THRESHOLD = range(10)

GRANULAR = Calorimeter()
# Voxels of 25/13 the size each way: noise and threshold grow with the square root of their number
# of sensor layers, at equal noise per area.
SMALL = Calorimeter(layers=13, cells=13, noise=1.8, threshold=8.3)
