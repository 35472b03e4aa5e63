"""`Quality`: how good the generator is, after each epoch, as columns of the history."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..data import Dataset
from ..replica.gan import Game
from ..runtime.callback import Callback
from .gan import Average, samples_of

SAMPLES = 1000

# f(samples, conditions) -> {column: number}
Measure = Callable[[np.ndarray, np.ndarray], dict[str, float]]


def measure_of(dataset: Dataset, seed: int) -> tuple[tuple[str, ...], Callable[[], Measure]] | None:
    """(Its columns, what makes the measure) that fits a dataset; None if none does."""
    shape, kept = dataset.inputs_shape, dataset.validation
    if kept is None or isinstance(shape, dict) or (shape and isinstance(shape[0], tuple)):
        return None
    if dataset.classes is not None and len(shape) == 3:
        return ("accuracy_asked", "missing_classes"), lambda: _of_classes(dataset, seed)
    if len(shape) == 3 and len(kept.targets) and kept.targets.dtype.kind == "f":
        names = "separation", "profile_error", "resolution_error"
        return names, lambda: _of_showers(dataset)
    if int(np.prod(shape)) == 1:
        return ("distance",), lambda: _of_numbers(dataset)
    return None


def _of_classes(dataset: Dataset, seed: int) -> Measure:
    from ..quality.digits import judge

    of = judge(dataset, seed)

    def measure(samples: np.ndarray, asked: np.ndarray) -> dict[str, float]:
        found = of.counts(samples, asked)
        return {"accuracy_asked": found["accuracy"], "missing_classes": len(found["missing"])}

    return measure


def _of_showers(dataset: Dataset) -> Measure:
    from ..quality import showers
    from ..quality.separation import separations

    real, energies, *_ = dataset.validation.take(slice(0, SAMPLES))
    theirs = showers.flat(showers.features(real, energies))

    def measure(samples: np.ndarray, asked: np.ndarray) -> dict[str, float]:
        ours = showers.flat(showers.features(samples, asked))
        separation = float(separations(ours, theirs).mean())
        return {
            "separation": separation,
            "profile_error": showers.profile_error(samples, real),
            "resolution_error": showers.resolution_error(samples, real, asked),
        }

    return measure


def _of_numbers(dataset: Dataset) -> Measure:
    """The area between both distribution functions: the Wasserstein-1 distance in one dimension."""
    real = np.sort(np.ravel(dataset.train.inputs).astype(np.float64))

    def measure(samples: np.ndarray, asked: np.ndarray) -> dict[str, float]:
        made = np.sort(np.ravel(samples).astype(np.float64))
        at = (np.arange(SAMPLES) + 0.5) / SAMPLES
        both = (np.quantile(one, at) for one in (made, real))
        return {"distance": float(np.mean(np.abs(next(both) - next(both))))}

    return measure


class Quality(Callback):
    """Measures samples of the averaged generator after each epoch; the same on every rank.

    Args:
        game: Its generator.
        dataset: What it learns from, not numbered; the conditions asked for are those of its
            validation part.
        average: The weights it is measured with; None: those in training.
        seed: Seed of the noise.
        alone: Whether only rank 0 has callbacks, as with a master.

    Attributes:
        columns: What it adds to the history: for classes "accuracy_asked" (share of 1000 images
            that a classifier of real ones takes for the class asked for) and "missing_classes";
            for showers "separation" (mean separation power), "profile_error" and
            "resolution_error"; for numbers "distance" (Wasserstein-1).
    """

    def __init__(
        self,
        game: Game,
        dataset: Dataset,
        average: Average | None = None,
        seed: int = 0,
        alone: bool = False,
    ) -> None:
        self.game, self.dataset, self.average, self.seed = game, dataset, average, seed
        self.alone = alone
        found = measure_of(dataset, seed)
        self.columns, self._make = found or ((), None)
        self._measure: Measure | None = None

    def on_epoch_end(self, trainer, row: dict) -> None:
        if self._make is None:
            return
        numbers = np.zeros(len(self.columns))
        if trainer.team.rank == 0:
            found = self.measured()
            numbers[:] = [found[name] for name in self.columns]
        if trainer.team.size > 1 and not self.alone:
            trainer.team.broadcast(numbers)
        row |= dict(zip(self.columns, map(float, numbers), strict=True))

    def measured(self) -> dict[str, float]:
        """The columns, now, by this rank alone."""
        self._measure = self._measure or self._make()
        asked = self.dataset.validation.targets
        if self.dataset.classes is not None:
            asked = np.arange(SAMPLES) % self.dataset.classes
        elif len(asked):
            asked = asked[:SAMPLES]
        made = samples_of(self.game, self.average, asked, len(asked) or SAMPLES, self.seed)
        return self._measure(made, asked)
