"""`Samples`: grids of what the generator makes, from the same noise, as training goes on.

    samples = Samples(game, dataset)
    gan_trainer(game, dataset, batch_size=32, callbacks=[samples]).fit(20)
    samples                                 # in a notebook: the grids by epoch, beside each other

A notebook shows the newest grid below the losses while it trains, `train --json` writes all of
them, and the report of `python -m tutorial_dl run` has a row of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..data import Dataset
from ..replica.gan import EMPTY, Game
from ..runtime.callback import Callback
from .gan import average_of, samples_of
from .strips import png, strip

ROWS, COLUMNS = 3, 10  # of a grid, at most
KEPT = 8  # grids
NUMBERS = 2000  # of a histogram
LEAST = 0.01  # GeV; the lower end of the scale of showers
GAP, PAPER, DATA, INK = 176, 255, 200, 0  # greys: between samples, of nothing, of data, of samples

# f(samples) -> a picture, (height, width) uint8
View = Callable[[np.ndarray], np.ndarray]


def tiled(images: np.ndarray, columns: int) -> np.ndarray:
    """Images (n, h, w) of uint8 in rows of `columns`, with a line of one pixel between them."""
    lined = np.pad(images, ((0, -len(images) % columns), (0, 1), (0, 1)), constant_values=GAP)
    rows = lined.reshape(-1, columns, *lined.shape[1:])
    return np.block([list(row) for row in rows])[:-1, :-1]


def inked(shares: np.ndarray) -> np.ndarray:
    """Numbers as greys: 0 (or less) white, 1 (or more) black."""
    return np.round(PAPER * (1 - np.clip(np.nan_to_num(shares, nan=0.0), 0, 1))).astype(np.uint8)


def view_of(dataset: Dataset) -> tuple[np.ndarray, int, View, str] | None:
    """(Conditions, number of samples, view, words) that fit a dataset; None if none do.

    Images are drawn as they are, black for 1; showers from the side, layers to the right, the
    logarithm of the energy; numbers as a histogram before that of the data.
    """
    shape, train = dataset.inputs_shape, dataset.train
    if isinstance(shape, dict) or (shape and isinstance(shape[0], tuple)):
        return None
    targets = train.targets
    if len(shape) == 3 and not isinstance(targets, tuple | dict) and len(targets):
        if dataset.classes is not None:
            columns = min(COLUMNS, dataset.classes)
            asked = np.tile(np.arange(columns), ROWS)
            return asked, len(asked), _images(columns), "one column per class"
        if targets.dtype.kind == "f":
            return _of_showers(dataset)
    if len(shape) == 3:
        return np.asarray(EMPTY), ROWS * COLUMNS, _images(COLUMNS), ""
    if int(np.prod(shape)) == 1:
        return np.asarray(EMPTY), NUMBERS, _histogram(dataset), "black, before the data in grey"
    return None


def _images(columns: int) -> View:
    return lambda samples: tiled(inked(samples.mean(axis=-1)), columns)


def _of_showers(dataset: Dataset) -> tuple[np.ndarray, int, View, str]:
    real, energies, *_ = dataset.train.take(slice(0, 200))
    columns = 5
    asked = np.quantile(np.ravel(energies), np.linspace(0.05, 0.95, columns)).astype(np.float32)
    span = np.log(max(float(real.sum(axis=3).max()), 10 * LEAST) / LEAST)

    def view(samples: np.ndarray) -> np.ndarray:
        side = np.maximum(samples.sum(axis=3), LEAST)  # (n, layers, x)
        return tiled(inked(np.log(side / LEAST) / span).transpose(0, 2, 1), columns)

    words = f"from the side, one column per energy, {asked[0]:.0f} to {asked[-1]:.0f} GeV"
    return np.tile(asked, ROWS), ROWS * columns, view, words


def _histogram(dataset: Dataset, bins: int = 80, height: int = 40) -> View:
    real = np.ravel(dataset.train.take(slice(0, 20_000))[0]).astype(np.float64)
    low, high = np.quantile(real, [0.001, 0.999])
    wide = max(high - low, 1e-9) / 4
    edges = np.linspace(low - wide, high + wide, bins + 1)

    def shares(numbers: np.ndarray) -> np.ndarray:
        return np.histogram(numbers, edges)[0] / len(numbers)

    of_data, rows = shares(real), np.arange(height)[::-1, None]
    unit = 1.5 * of_data.max() / height

    def view(samples: np.ndarray) -> np.ndarray:
        picture = np.where(rows < np.round(of_data / unit), DATA, PAPER)
        top = np.minimum(np.round(shares(np.ravel(samples)) / unit), height - 1)
        before = np.concatenate([[0], top[:-1]])
        lower, upper = np.minimum(top, before), np.maximum(top, before)  # an outline with its steps
        return np.where((rows >= lower) & (rows <= upper), INK, picture).astype(np.uint8)

    return view


class Samples(Callback):
    """Keeps grids of samples of the averaged generator, made from the same noise in every epoch.

    Rank 0 alone makes them. Without an average (a strategy with a master has none), the weights
    in training make them. Resumed runs begin with new grids.

    Args:
        game: Its generator.
        dataset: What it learns from, not numbered.
        seed: Seed of the noise.
        kept: The most grids that are kept. If there are more, every other one is dropped, so that
            they always cover the whole run.

    Attributes:
        words: What the grid shows.
        newest: (epoch, picture) after the last epoch; None before training.
    """

    def __init__(self, game: Game, dataset: Dataset, seed: int = 0, kept: int = KEPT) -> None:
        if kept < 2:
            raise ValueError(f"kept must be at least 2, got {kept}")
        self.game, self.seed, self.kept, self.newest = game, seed, kept, None
        found = view_of(dataset)
        self._asked, self._count, self._view, self.words = found or (None, 0, None, "")
        self._seen: list[tuple[int, np.ndarray]] = []
        self._every = 1

    @property
    def frames(self) -> list[tuple[int, np.ndarray]]:
        """(Epoch, picture (height, width) uint8) in order; epoch 0 is before training."""
        if self.newest is None:
            return []
        return [*(one for one in self._seen if one[0] < self.newest[0]), self.newest]

    def on_fit_begin(self, trainer) -> None:
        # Without the average: Hogwild's other ranks may train already, on the same weights
        if not trainer.history.epochs and trainer.team.rank == 0:
            self._look(None, 0)

    def on_epoch_end(self, trainer, row: dict) -> None:
        if trainer.team.rank == 0:
            self._look(average_of(trainer), row["epoch"])

    def _look(self, average, epoch: int) -> None:
        if self._view is None:
            return
        made = samples_of(self.game, average, self._asked, self._count, self.seed)
        self.newest = epoch, self._view(made)
        self._seen = [one for one in self._seen if one[0] < epoch]  # (an epoch may be done again)
        if epoch % self._every == 0:
            self._seen.append(self.newest)
        if len(self._seen) >= self.kept:  # (so that the newest one has a place, too)
            self._every *= 2
            self._seen = [one for one in self._seen if one[0] % self._every == 0]

    # What is shown

    def shown(self) -> str:
        """The newest grid in HTML, for a notebook's display; "" if there is none."""
        return strip([self.newest], self.words) if self.newest is not None else ""

    def html(self) -> str:
        """All grids beside each other, each with its epoch."""
        return strip(self.frames, self.words)

    _repr_html_ = html  # for Jupyter

    def pictures(self) -> list[dict]:
        """The grids for JSON: [{"epoch": n, "png": PNG in base64}]."""
        return [{"epoch": epoch, "png": png(picture)} for epoch, picture in self.frames]
