"""`try_out`: whether what a model computes of a batch is a mean over its samples.

Ranks that share a batch compute parts of it, and the mean of what they find must be what one
process finds for the batch. No one can tell from code, so a few samples with different targets are
computed, whole and in parts of uneven length, in training and in inference:

    mean over samples:  n L(whole) = sum over parts of n_i L(part_i)

A model that draws random numbers draws others for parts than for the whole. So its batches have
one length, which with the same seeds has the same draws in each place, and two halves are swapped:

    no sample sees another:  L(a, b) + L(c, d) = L(a, d) + L(c, b)

`keras.StatelessScope` discards what a call changes: seeds, moving statistics, counters. Batch
normalisation sees other samples on purpose, so it is in inference mode meanwhile.

A loss or a metric that is no mean (one ratio over the batch, such as Dice) can be computed of the
outputs and targets of all ranks; what a layer mixes can't be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tutorial_dl.data.dataset import Batch, Data
from tutorial_dl.replica.keras.losses import losses_by
from tutorial_dl.replica.keras.metrics import (
    KerasMetrics,
    as_fit,
    is_empty,
    is_ours_or_keras,
    parts_of,
    states_of,
)
from tutorial_dl.replica.keras.shape_errors import name_of
from tutorial_dl.tensorflow_chatter import quiet

with quiet():
    import keras
    import tensorflow as tf

NEAR, NEAR_HALF = 1e-4, 2e-2  # relative; where layers compute in half precision
OF_KERAS_NO_MEANS = {"Circle", "Dice", "Tversky", "circle", "dice", "tversky"}
OF_KERAS_MIXING = {"MixUp", "CutMix"}
SAMPLES = 12
CUTS = (2, 5), (8,)  # where a batch of SAMPLES is cut


@dataclass
class Findings:
    """What ranks that share a batch must compute of the whole batch.

    Attributes:
        losses: Places of the compiled losses that are no means over samples.
        metrics: Names of the metrics whose numbers are no sums over samples.
        states: Weights that are not trained by gradient: (variable, "sum", "max" or "min").
    """

    losses: dict[int, str] = field(default_factory=dict)
    metrics: list[str] = field(default_factory=list)
    states: list[tuple[Any, str]] = field(default_factory=list)

    def why(self) -> str | None:
        """What needs the whole batch, in words; None: nothing does."""
        if self.losses:
            return f"loss '{next(iter(self.losses.values()))}' is not a mean over samples"
        if self.metrics:
            return f"the numbers of metric '{self.metrics[0]}' are not sums over samples"
        if self.states:
            variable, how = self.states[0]
            return f"weights '{variable.path}' hold a {how} over samples"
        return None


class TryOut:
    """Args:
    model: A built model, with variables of losses and metrics.
    batch: (x, y, w) of some samples, as numpy arrays; y and w are () if there are none.
    """

    def __init__(self, model: keras.Model, batch: Batch) -> None:
        self.model, self.data = model, Data(*batch)
        self.n = len(self.data)
        halves = {layer.compute_dtype for layer in model._flatten_layers()}
        self.near = NEAR_HALF if halves & {"float16", "bfloat16"} else NEAR
        self.cuts = CUTS if self.n == SAMPLES else ((self.n // 2,),)

    # What is computed

    def loss(self, batch: Batch, training: bool, without: Any = ()) -> float:
        """The loss of a batch, as a step finds it, but for the losses in places `without`."""
        x, y, w = self._tensors(batch)
        with self._scope(), losses_by(self.model, lambda i, of: zero if i in without else of):
            outputs = self.model(x, training=training)
            return float(self.model.compute_loss(x, y, outputs, w, training=training))

    def outputs(self, batch: Batch, training: bool) -> list[np.ndarray]:
        with self._scope():
            found = self.model(self._tensors(batch)[0], training=training)
        return [np.asarray(tf.cast(a, tf.float64)) for a in keras.tree.flatten(found)]

    def _tensors(self, batch: Batch) -> tuple:
        return as_fit(*keras.tree.map_structure(tf.constant, (*batch, ())[:3]))

    @contextmanager
    def _scope(self) -> Iterator[Any]:
        weights = [(v, v.value) for v in self.model.trainable_variables]  # for regularisers
        with statistics_kept(self.model), keras.StatelessScope(weights, True) as scope:
            yield scope

    # What it is compared with

    def is_mean(self, function: Callable[[slice], float]) -> bool:
        """Whether a function of samples is a mean over them."""
        whole = self.n * function(slice(None))
        return all(self._alike(whole, self._of_parts(function, cut)) for cut in self.cuts)

    def _of_parts(self, function: Callable[[slice], float], cut: tuple[int, ...]) -> float:
        parts = parts_of(self.n, cut)
        return sum((p.stop - p.start) * function(p) for p in parts)

    def mixes(self, function: Callable[[Batch], float]) -> bool:
        """Whether some sample has an effect on what another adds to it."""
        one, other = np.arange(self.n), np.roll(np.arange(self.n), self.n // 2)
        k = self.n // 2 - (self.n > 3)
        joined = [np.append(a[:k], b[k:]) for a in (one, other) for b in (one, other)]
        aa, ab, ba, bb = (function(self.data.take(places)) for places in joined)
        return not self._alike(aa + bb, ab + ba)

    def _alike(self, one: float, other: float) -> bool:
        return abs(one - other) <= self.near * max(abs(one), abs(other), 1e-12)

    def draws(self, training: bool) -> bool | None:
        """Whether the model draws random numbers by generators of Keras; None: by others."""
        x = self._tensors(self.data.take(slice(None)))[0]
        once, again = (self.outputs(self.data.take(slice(None)), training) for _ in range(2))
        if any((a != b).any() for a, b in zip(once, again, strict=True)):
            return None
        seeds = [v for v in states_of(self.model) if v.path.endswith("seed_generator_state")]
        before = [v.numpy() for v in seeds]
        with self._scope() as scope:
            first = keras.random.uniform(())
        with self._scope() as scope:
            self.model(x, training=training)
            after = [np.asarray(scope.get_current_value(v)) for v in seeds]
            second = keras.random.uniform(())  # of the generator of those without one
        return bool(first != second) or any(
            (a != b).any() for a, b in zip(before, after, strict=True)
        )

    # What is found

    def check(self, losses: dict[int, str]) -> None:
        """Raise ValueError if what is computed but for these losses is no mean over samples."""
        for training in (False, True):
            draws = self.draws(training)
            if draws is not None and not self._holds(training, draws, losses):
                raise self._complaint(training)

    def _holds(self, training: bool, draws: bool, without: Any) -> bool:
        def loss(batch: Batch) -> float:
            return self.loss(batch, training, without)

        if not draws:
            return self.is_mean(lambda part: loss(self.data.take(part)))
        everything = np.arange(self.n)
        once, twice = (loss(self.data.take(np.tile(everything, times))) for times in (1, 2))
        return not self.mixes(loss) and (twice < 1.6 * once or once <= 0)  # a sum would be twice

    def losses(self) -> dict[int, str]:
        """The compiled losses that are no means, of outputs that stay as they are."""
        compiled = self.model._compile_loss
        whole = self.data.take(slice(None))
        x, y, w = keras.tree.map_structure(tf.constant, (*whole, ())[:3])
        with self._scope():
            outputs = self.model(x, training=False)
        found = {}
        for place, one in enumerate([] if compiled is None else compiled._flat_losses):

            def value(part: slice, place: int = place) -> float:
                seen = {}

                def kept(i: int, loss: Any) -> Callable:
                    return lambda *given: seen.setdefault(i, loss(*given) if i == place else 0.0)

                targets, p, weights = keras.tree.map_structure(lambda a: a[part], (y, outputs, w))
                with losses_by(self.model, kept):
                    compiled(targets, p, None if is_empty(weights) else weights)
                return float(seen[place])

            if not self.is_mean(value):
                found[place] = name_of(one.loss)
        return found

    def _complaint(self, training: bool) -> ValueError:
        mixing = self.mixing_layer(training)
        when = "in training" if training else "in inference"
        if mixing is not None:
            words = f"its layer '{mixing}' lets samples of a batch see each other {when}"
        else:
            whole = self.loss(self.data.take(slice(None)), training)
            parts = self._of_parts(
                lambda part: self.loss(self.data.take(part), training), self.cuts[-1]
            )
            words = (
                f"its loss {when} is not a mean over samples ({whole:.4g} for {self.n} samples, "
                f"{parts / self.n:.4g} for two parts of them)"
            )
        return ValueError(
            f"model '{self.model.name}': {words}, so ranks can't share a batch; return one number "
            "per sample, or their mean"
        )

    def mixes_in_inference(self) -> bool:
        """Whether an output of a sample depends on others (not told if draws are not Keras's)."""
        return self.draws(False) is not None and self.mixing_layer(False) is not None

    def mixing_layer(self, training: bool) -> str | None:
        """The first layer whose output of a sample depends on other samples; None: none does."""
        places = np.arange(self.n)
        k = self.n // 2
        other = np.append(places[:k], np.roll(places, k)[k:])

        def independent(call: Callable) -> bool:
            one, two = (call(self._tensors(self.data.take(p))[0]) for p in (places, other))
            return all(
                np.allclose(a[:k], b[:k], rtol=self.near, atol=self.near)
                for a, b in zip(*map(keras.tree.flatten, (one, two)), strict=True)
            )

        def called(model: Any) -> Callable:
            def call(x: Any) -> Any:
                with self._scope():
                    return model(x, training=training)

            return call

        if independent(called(self.model)):
            return None
        for layer in self.model.layers if hasattr(self.model, "inputs") else ():
            try:
                part = keras.Model(self.model.inputs, layer.output)
            except (AttributeError, ValueError):  # of a class of the user's, or called twice
                continue
            if not independent(called(part)):
                return layer.name
        own = (x.name for x in self.model._flatten_layers(False) if not is_ours_or_keras(x))
        return next(own, self.model.name)

    # States

    def states(self) -> list[tuple[Any, str]]:
        """What layers of the user's keep in weights that are not trained: sums and extremes.

        ValueError for what is neither a mean over samples, nor a sum, nor an extreme.
        """
        layers = [x for x in self.model._flatten_layers() if is_ours_or_keras(x)]
        leaves = [x for x in layers if not any(x._flatten_layers(include_self=False))]
        theirs = {id(v) for layer in leaves for v in layer.non_trainable_variables}
        kept = [v for v in self.model.non_trainable_variables if id(v) not in theirs]
        kept = [v for v in kept if not v.path.endswith("seed_generator_state")]
        if not kept:
            return []
        parts = parts_of(self.n, self.cuts[0])
        whole, *each = (self._after(kept, part) for part in (slice(None), *parts))
        sizes = [part.stop - part.start for part in parts]
        kinds = ((v, self._kind(v, *of, sizes)) for v, *of in zip(kept, whole, *each, strict=True))
        return [(variable, how) for variable, how in kinds if how is not None]

    def _after(self, variables: list, part: slice) -> list[np.ndarray]:
        """The values of variables after a step in training on some samples."""
        x = self._tensors(self.data.take(part))[0]
        with self._scope() as scope:
            self.model(x, training=True)
            found = [scope.get_current_value(v) for v in variables]
        pairs = zip(found, variables, strict=True)
        return [np.asarray(v.value if now is None else now).astype(np.float64) for now, v in pairs]

    def _kind(self, variable: Any, whole: np.ndarray, *more: Any) -> str | None:
        """more: the values after each part, and their numbers of samples."""
        *each, sizes = more
        # First what holds to the last bit: it may begin with a very small number, or with -inf.
        if (np.ptp(each, axis=0) != 0).any():
            for how, extreme in (("max", np.max), ("min", np.min)):
                if (whole == extreme(each, axis=0)).all():
                    return how
        start = variable.numpy().astype(np.float64)
        change, changes = whole - start, [one - start for one in each]
        near = {"rtol": self.near, "atol": self.near * max(1e-12, np.abs(change).max(initial=0))}
        if np.allclose(change, np.average(changes, axis=0, weights=sizes), **near):
            return None
        if np.allclose(change, sum(changes), **near):
            return "sum"
        raise ValueError(
            f"model '{self.model.name}': the weights '{variable.path}', which are not trained, are "
            "neither a mean over samples nor their sum or extreme, so ranks can't share a batch"
        )


def zero(*ignored: Any) -> float:
    return 0.0


@contextmanager
def statistics_kept(model: keras.Model) -> Iterator[None]:
    """Within, layers of batch normalisation compute as in inference."""
    kind = keras.layers.BatchNormalization
    found = [x for x in model._flatten_layers() if isinstance(x, kind) and x.trainable]
    trained = [(v, v.trainable) for layer in found for v in layer.variables]
    for layer in found:
        layer.trainable = False
    try:
        yield
    finally:
        for layer in found:
            layer.trainable = True
        for variable, trainable in trained:
            variable.trainable = trainable


def known(model: keras.Model, metrics: KerasMetrics) -> bool:
    """Whether all is Keras's own, and a mean over samples."""
    if metrics.beyond_compile_of_keras or not metrics.losses_of_keras:
        return False
    compiled = model._compile_metrics
    given = [model.loss]
    if compiled is not None:
        given += [compiled._user_metrics, compiled._user_weighted_metrics]
    names = set(map(name_of, keras.tree.flatten(given)))
    kinds = {type(one).__name__ for one in [*keras.tree.flatten(given), *model._flatten_layers()]}
    return not (names | kinds) & (OF_KERAS_NO_MEANS | OF_KERAS_MIXING)
