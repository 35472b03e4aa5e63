"""GANs of calorimeter showers, conditional on the particle's energy.

`shower_gan` takes voxels (layers, x, y) in GeV, as of data.showers. For few voxels (13^3) its
convolutions are two-dimensional, with the calorimeter's layers as channels; for 25^3 they are
three-dimensional, as in 3DGAN (Khattak et al., arXiv 1912.06794; Carminati et al., 2018).

The small generator knows what is simple about showers, and learns the rest. A voxel has

    E * response * profile_layer * transverse_voxel,    0 below the threshold of the data

where both distributions are softmaxes: the logarithm of the data's mean, fitted in ln E, plus what
the network adds. It adds fluctuations from 48 numbers of noise per shower, and from one number per
voxel, times a learned amplitude. Those of the response have the spread that the data have at this
energy, times what the network learns: it falls as about 1 / sqrt(E).

The discriminator sees the logarithms of the voxels, and what a physicist would look at (energies,
centres and widths of the layers, how many voxels are hit, the energy ratio). Beside its score it
has the auxiliary outputs of 3DGAN: the particle's energy, and the energy sum.
"""

from __future__ import annotations

import numpy as np

from tutorial_dl.data import Dataset
from tutorial_dl.models import sample_shape
from tutorial_dl.models.digits_gans import seeded
from tutorial_dl.replica.gan import Game, Rules
from tutorial_dl.replica.keras_gan import KerasGan
from tutorial_dl.replica.keras_spectral import SpectralConv2D, SpectralDense
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    from keras import layers, ops

NOISE = 48  # numbers per shower
LOOKED_AT = 2000  # samples of the data that means are taken from
SMALL = 16  # layers up to which convolutions are two-dimensional
RULES = Rules(
    smoothing=0.1, auxiliary={"energy": 0.1, "sum": 0.1}, rates=(2e-4, 4e-4), average=0.998
)


class Means:
    """What the model takes from the data before training; all from its first samples.

    Attributes:
        threshold: The smallest energy in a voxel that is not 0, GeV.
        response: Mean of the energy in all voxels over the particle's.
        spread: c, d in ln(standard deviation of that over its mean) = c + d ln(E / 100).
        profile: (2, layers): a, b in ln(share of a layer) = a + b ln(E / 100).
        transverse: (layers, x, y): mean share of each voxel in its layer.
    """

    def __init__(self, x: np.ndarray, energies: np.ndarray) -> None:
        x, energies = np.asarray(x, np.float64), np.asarray(energies, np.float64)
        layers, total = x.sum(axis=(2, 3)), x.sum(axis=(1, 2, 3))
        self.threshold = float(x[x > 0].min()) if (x > 0).any() else 0.0
        self.response = float(np.mean(total / energies))
        shares = np.log(layers / total[:, None] + 1e-5)
        logs = np.log(energies / 100)
        terms = np.stack([np.ones(len(x)), logs], axis=1)
        self.profile = np.linalg.lstsq(terms, shares, rcond=None)[0]
        away = total / energies
        away = away - terms @ np.linalg.lstsq(terms, away, rcond=None)[0]
        self.spread = fitted_spread(away[:, None] / self.response, logs)[:, 0]
        mean = x.mean(axis=0) / layers.mean(axis=0)[:, None, None].clip(1e-12)
        self.transverse = mean + 1e-6


# The mean of ln |z| of a standard normal z: -(Euler's constant + ln 2) / 2
LOG_OF_NORMAL = -0.5 * (np.euler_gamma + np.log(2))


def fitted_spread(away: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """How the standard deviation depends on energy: (2, k), c and d of each column.

    ln(standard deviation) = c + d ln(E / 100), a regression of the logarithms of absolute values
    (Harvey, Econometrica 44, 1976), as if the values were normal.

    Args:
        away: (s, k) values of mean 0.
        logs: (s,) ln(E / 100).
    """
    terms = np.stack([np.ones(len(logs)), logs], axis=1)
    least = 1e-6 + 1e-3 * np.abs(away).max(axis=0, initial=0.0)  # one that is 0 has no logarithm
    found = np.linalg.lstsq(terms, np.log(np.maximum(np.abs(away), least)), rcond=None)[0]
    found[0] -= LOG_OF_NORMAL
    return found


def _looked_at(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    shape, targets = sample_shape("shower-gan", dataset), dataset.train.targets
    energies = not isinstance(targets, tuple | dict) and targets.dtype.kind == "f"
    if len(shape) != 3 or shape[1] != shape[2] or shape[0] < 4 or not energies or dataset.classes:
        raise ValueError(
            "model 'shower-gan' makes showers (layers, x, x) of given energies, as of data "
            f"'showers' and 'small-showers': dataset '{dataset.name}' has samples of shape {shape}"
        )
    x, y, *_ = dataset.train.take(slice(0, LOOKED_AT))
    y = y.reshape(-1)
    if not ((y > 0).all() and (x.sum(axis=(1, 2, 3)) > 0).any()):
        raise ValueError(f"dataset '{dataset.name}': energies and voxels must be above 0, in GeV")
    return x, y


def shower_gan(dataset: Dataset, seed: int = 0) -> Game:
    """The GAN that fits the dataset; see the module's docstring."""
    x, y = _looked_at(dataset)
    means = Means(x, y)
    made = _generator if x.shape[1] <= SMALL else _generator_3d
    judged = _discriminator if x.shape[1] <= SMALL else _discriminator_3d
    generator = seeded(made(x.shape[1:], means), 2 * seed)
    discriminator = seeded(judged(x, y, means), 2 * seed + 1)
    game = KerasGan(generator, discriminator, RULES)
    game.name = "shower-gan"
    return game


def _given(size: int):
    """Inputs, and what the first dense layer gets: noise of the shower, and two functions of E."""
    noise, y = keras.Input((size,), name="noise"), keras.Input((), name="energy")
    return noise, y, _terms(y)


def _terms(y):
    y = ops.reshape(y, (-1, 1))
    return ops.concatenate([ops.log(y / 100), y / 250 - 1], axis=-1)


def _above(x, threshold: float):
    return ops.where(x >= threshold, x, 0.0)


def _generator(shape: tuple[int, ...], means: Means):
    depth, side, _ = shape
    voxels = depth * side * side
    noise, y, terms = _given(NOISE + voxels)
    own = ops.concatenate([noise[:, :NOISE], terms], axis=-1)
    x = layers.Dense(128, "swish")(layers.Dense(128, "swish")(own))

    # Energy in each layer
    c, d = means.spread.tolist()
    by_energy = ops.exp(terms[:, :1] * d + c)
    response = means.response * ops.exp(by_energy * layers.Dense(1)(x))  # (s, 1)
    a, b = means.profile.astype(np.float32)
    profile = terms[:, :1] * b + a + 0.3 * layers.Dense(depth)(x)
    energies = ops.reshape(y, (-1, 1)) * response * ops.softmax(profile, axis=-1)  # (s, depth)

    # Where in the layer
    small = -(-side // 4)
    maps = layers.Reshape((small, small, 32))(layers.Dense(small * small * 32, "swish")(x))
    maps = layers.Conv2D(16, 3, padding="same", activation="swish")(layers.UpSampling2D()(maps))
    maps = layers.UpSampling2D()(maps)
    low = (4 * small - side) // 2
    maps = maps[:, low : low + side, low : low + side]
    shift = layers.Conv2D(depth, 3, padding="same")(maps)
    spread = layers.Conv2D(depth, 3, padding="same")(maps)
    single = ops.reshape(noise[:, NOISE:], (-1, side, side, depth))
    template = np.log(np.moveaxis(means.transverse, 0, -1)).astype(np.float32)
    logits = 0.3 * shift + 0.3 * ops.exp(spread) * single + template
    logits = ops.transpose(logits, (0, 3, 1, 2))  # (s, depth, x, y)
    shares = ops.softmax(ops.reshape(logits, (-1, depth, side * side)), axis=-1)
    made = ops.reshape(shares * ops.expand_dims(energies, -1), (-1, *shape))
    return keras.Model([noise, y], _above(made, means.threshold), name="generator")


def features(x, y, threshold: float):
    """What a physicist looks at, (s, 6 layers + 1), of voxels (s, layers, x, y) and energies (s,).

    ln of the share of E in each layer, centres and widths along x and y (in sizes of the
    calorimeter), a smooth count of the voxels hit, and ln of the energy ratio.
    """
    side = x.shape[-1]
    place = ((np.arange(side) + 0.5) / side - 0.5).astype(np.float32)
    layers = ops.sum(x, axis=(2, 3))
    known = layers + 0.02  # GeV, so that empty layers have a centre
    found = [ops.log(layers / ops.reshape(y, (-1, 1)) + 1e-4)]
    for axis in (3, 2):  # sums over y leave x, and the other way round
        along = ops.sum(x, axis=axis)
        centre = ops.sum(along * place, axis=-1) / known
        square = ops.sum(along * place**2, axis=-1) / known
        found += [centre, ops.sqrt(ops.maximum(square - centre**2, 0.0) + 1e-5)]
    found.append(ops.mean(ops.sigmoid((x / threshold - 0.9) * 8), axis=(2, 3)))
    found.append(ops.log(ops.sum(layers, axis=-1, keepdims=True) / ops.reshape(y, (-1, 1)) + 1e-3))
    return ops.concatenate(found, axis=-1)


def _standardised(image, y, x: np.ndarray, energies: np.ndarray, means: Means):
    """The features of `image`, less the mean and over the spread that they have in the data.

    The mean is a polynomial in ln E; the spread is one number for all energies. (One that depends
    on E gave worse profiles and separations: docs/gans.md.)
    """
    threshold = max(means.threshold, 1e-6)
    of_data = np.asarray(
        features(ops.convert_to_tensor(x), ops.convert_to_tensor(energies),
                 threshold), np.float64,
    )  # fmt: skip
    powers = np.log(energies[:, None] / 100) ** np.arange(3)
    fit = np.linalg.lstsq(powers, of_data, rcond=None)[0]
    spread = (of_data - powers @ fit).std(axis=0) + 1e-3
    log = ops.log(ops.reshape(y, (-1, 1)) / 100)
    mean = sum(log**i * row for i, row in enumerate(fit.astype(np.float32)))
    return (features(image, y, threshold) - mean) / spread.astype(np.float32)


def _judged(image, y, score, seen, means: Means):
    """The discriminator: its score, the energy it sees, and that in all voxels with its mean."""
    total = ops.sum(image, axis=(1, 2, 3))
    energy = layers.Dense(1, name="energy_output")(seen)
    sums = ops.stack([total, means.response * y], axis=-1)
    outputs = {"score": score, "energy": energy, "sum": sums}
    return keras.Model([image, y], outputs, name="discriminator")


def _discriminator(x: np.ndarray, energies: np.ndarray, means: Means):
    image, y = keras.Input(x.shape[1:], name="voxels"), keras.Input((), name="energy")
    maps = ops.transpose(ops.log(1 + image / max(means.threshold, 1e-6)), (0, 2, 3, 1))
    for filters in (32, 64):
        maps = SpectralConv2D(filters, 3, strides=2, padding="same")(maps)
        maps = layers.LeakyReLU(0.2)(maps)
    seen = layers.LeakyReLU(0.2)(SpectralDense(64)(layers.Flatten()(maps)))
    known = ops.concatenate([_standardised(image, y, x, energies, means), _terms(y)], axis=-1)
    for _ in range(2):
        known = layers.LeakyReLU(0.2)(layers.Dense(128)(known))
    score = layers.Dense(1, name="score")(ops.concatenate([seen, known], axis=-1))
    return _judged(image, y, score, seen, means)


def _generator_3d(shape: tuple[int, ...], means: Means):
    """Three-dimensional: grows from a quarter of the size; UpSampling3D and Conv3D."""
    noise, y, terms = _given(200)
    x = layers.Dense(128, "swish")(ops.concatenate([noise, terms], axis=-1))
    small = tuple(-(-n // 4) for n in shape)
    x = layers.Reshape((*small, 8))(layers.Dense(8 * int(np.prod(small)), "swish")(x))
    for filters in (16, 8):
        x = layers.Conv3D(filters, 3, padding="same", activation="swish")(layers.UpSampling3D()(x))
    x = x[:, : shape[0], : shape[1], : shape[2]]
    x = layers.Conv3D(1, 3, padding="same")(x)[..., 0]
    a, b = means.profile.astype(np.float32)
    shares = ops.reshape(ops.softmax(terms[:, :1] * b + a, axis=-1), (-1, shape[0], 1, 1))
    mean = ops.reshape(y, (-1, 1, 1, 1)) * means.response * shares
    made = mean * means.transverse.astype(np.float32) * ops.exp(x)
    return keras.Model([noise, y], _above(made, means.threshold), name="generator")


def _discriminator_3d(x: np.ndarray, energies: np.ndarray, means: Means):
    """Four three-dimensional convolutions, as in 3DGAN."""
    image, y = keras.Input(x.shape[1:], name="voxels"), keras.Input((), name="energy")
    maps = ops.expand_dims(ops.log(1 + image / max(means.threshold, 1e-6)), -1)
    for filters, kernel in ((16, 5), (8, 5), (8, 5), (8, 3)):
        maps = layers.Conv3D(filters, kernel, strides=2, padding="same")(maps)
        maps = layers.LeakyReLU(0.2)(maps)
    seen = layers.Dense(64, "swish")(layers.Flatten()(maps))
    known = ops.concatenate([_standardised(image, y, x, energies, means), _terms(y), seen], axis=-1)
    score = layers.Dense(1, name="score")(layers.LeakyReLU(0.2)(layers.Dense(64)(known)))
    return _judged(image, y, score, seen, means)
