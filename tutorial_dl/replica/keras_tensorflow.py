"""`KerasReplica`: a compiled Keras model as a Replica, computed by TensorFlow on our memory.

How TensorFlow's variables come to lie in our memory: keras_variables.py. What TensorFlow computes:
keras_steps.py.

Gradients need one copy: TensorFlow puts each layer's into memory of its own, from where it is
copied to its place in the flat `gradient`. (Joining them inside TensorFlow first would take two
copies.) For 670,000 parameters the copy takes 0.2 to 0.5 ms, compared with 1.3 ms for the gradient
itself; so the part that only this rank reads may stay where it is (`compute_gradient(batch,
apart)`).
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tutorial_dl.replica import keras_own_step as own_step
from tutorial_dl.replica.base import Batch, CompiledOptimizer
from tutorial_dl.replica.joining import join
from tutorial_dl.replica.keras_metrics import packed, unchanged
from tutorial_dl.replica.keras_misfits import wrong_label
from tutorial_dl.replica.keras_outputs import KerasOutputs
from tutorial_dl.replica.keras_steps import keras, own_batch_size, tf, zeros_like
from tutorial_dl.replica.keras_variables import address_of

NOTHING = np.zeros((3, 0), np.int64)


class KerasReplica(KerasOutputs):
    """The Replica of a compiled Keras model, functional, sequential or subclassed.

    Its loss is that of `model.compile(loss=...)` with the model's regularisers and added losses,
    its metrics are those of `model.compile(metrics=...)`. The optimizer that it was compiled with
    is what `own_optimizer` returns, as one of ours, because strategies update `parameters`.

    For several inputs or outputs, batches hold a tuple or dict of arrays, as the model expects. A
    float64 model must be built and compiled under `keras.config.set_floatx("float64")`.

    `model` must be built and compiled, its trainable weights all float32 or all float64; a
    TypeError or ValueError says why it can't be trained. It stays usable (predict, evaluate, save),
    always with the current weights. `segments` start at multiples of 64 bytes; the gaps between
    them hold zeros. `state`, the joined weights that are not trained by gradient, is a read-only
    copy.
    """

    gradient_is_finite = True
    own, own_factor = NOTHING, 1.0

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        layers = model._flatten_layers()
        normalized = [x for x in layers if isinstance(x, keras.layers.SpectralNormalization)]
        # Weights that a layer divides by their norm as it computes; see `_settle`.
        self._normalized = {id(layer.kernel) for layer in normalized}
        # State that ranks without samples must not change
        common = {id(v) for layer in self._collective for v in layer.non_trainable_weights}
        common |= {id(layer.vector_u) for layer in normalized}
        self._own_state = [v for v in self._state if id(v) not in common]
        self._steps = 0
        self.trained = {}
        self.traits = replace(
            self.traits,
            library="keras",
            saves_optimizer=True,
            uses_team=True,
            fixed_batch=own_batch_size(model),
            changes_parameters=bool(normalized),
            computes_in_float16=any(layer.compute_dtype == "float16" for layer in layers),
            compiles=True,
            counts_training=True,
            scales_loss=True,
            keeps_apart=True,
            tries_out=True,
        )
        self.traits = replace(self.traits, refuses_xla=self.why_no_xla())

    def use_team(self, team) -> None:
        for layer in self._collective:
            layer.training_team = team
        if (self._collective or self._may_mask) and team is not self._team:
            self._functions.clear()  # a graph keeps its team
        self._team = team

    def own_optimizer(self, given: Any = None) -> CompiledOptimizer | None:
        from tutorial_dl.replica.keras_optimizers import brought

        return brought(self.model, self.model.optimizer if given is None else given)

    def predict(self, x: Any) -> Any:
        """The model's outputs for inputs `x` as numpy arrays, with all layers in inference mode."""
        x, *_ = self._arrays((x, ()))
        self._samples((x,))
        return keras.tree.map_structure(np.asarray, self.model(x, training=False))

    def compute_gradient(
        self, batch: Batch, apart: tuple[int, int] | None = None
    ) -> tuple[float, int]:
        """Fill `gradient`; return (mean loss, samples). See `Replica`.

        [first, last) of the gradient, `apart`, may stay in TensorFlow's memory, which saves a copy;
        `own` has its place, valid until the next call.
        """
        samples, self.own, self._kept = self._samples(batch), NOTHING, None
        if samples == 0:
            if self._may_mask:
                self._build(self._arrays(batch))
            if self._collective or self._shares_losses or self._normalized:
                self._take_part(batch)
            self.gradient[:] = 0
            self.gradient_is_finite = True
            return 0.0, 0
        # The weights are returned, too, at no cost, to check where they lie in memory.
        loss, numbers, *rest = self._run(self._gradient_step, batch)
        gradients, weights = rest[: len(self.segments)], rest[len(self.segments) :]
        if len(numbers):
            self._training.add(numbers, samples)
        self._steps += 1
        self._settle(weights)
        addresses = np.array([address_of(g) for g in gradients])
        parts, factor = (self._offsets, addresses, self._sizes), 1 / self.loss_scale
        if apart is not None:
            self._kept = gradients  # or TensorFlow would reuse their memory too early
            self.own, self.own_factor = np.array([self._offsets, self._sizes, addresses]), factor
        self.gradient_is_finite = join(self.gradient, *parts, factor, apart or (0, 0))
        return float(loss), samples

    def _take_part(self, batch: Batch) -> None:
        """Without samples: compute on a placeholder of weight 0 (see collective_layers.py).

        The moving statistics of layers that need all ranks are shared and change; other weights
        that are not trained stay as they were.
        """
        before = [v.numpy() for v in self._own_state]
        _, _, *rest = self._run(self._step_without_samples, zeros_like(batch, 1))
        self._settle(rest[len(self.segments) :])
        for variable, value in zip(self._own_state, before, strict=True):
            variable.assign(value)

    def _settle(self, weights: list[tf.Tensor]) -> None:
        """After a step: `weights`, which it returned, must lie in `parameters`.

        SpectralNormalization assigns its weights, so they are copied to where they were.
        """
        for i, variable in enumerate(self._variables if self._normalized else ()):
            if id(variable) in self._normalized:
                self.segments[i].of(self.parameters)[...] = weights[i]
                self._alias(i)
        looked_after = self._steps % len(weights)
        if id(self._variables[looked_after]) not in self._normalized:
            self._check_alias(looked_after, weights[looked_after])

    @property
    def trained(self) -> dict[str, Any] | None:
        return self._training.sums if self._counts else None

    @trained.setter
    def trained(self, sums: dict[str, Any] | None) -> None:
        counts = sums is not None and self._metrics.beyond_loss
        if counts != self._counts:
            self._functions.clear()
        self._counts = counts
        if counts:
            self._training.sums = sums

    def try_out(self, batch: Batch, shared: bool, by_team: bool = True) -> None:
        self.check_batch(batch, shared)
        if not self._may_mask and not self._own_step and self._metrics.all_of_keras:
            return
        arrays = self._arrays(batch)
        self._build(arrays)
        if self._masked and shared and (self._own_step or not by_team):
            how = "with an asynchronous strategy, or on one rank"
            if not self._own_step:
                how = "with strategy 'synchronous' or an asynchronous one, without accumulate"
            raise ValueError(
                f"model '{self.model.name}' has a mask, so its loss is not a mean over samples: "
                f"use it {how}"
            )
        with unchanged(self.model):
            self._metrics.try_out(arrays, shared and not self._masked and not self._own_step)
            if self._own_step:
                own_step.check(self.model, self.parameters, arrays, shared)
                self._training.by_batch = self._metrics.by_batch_in(arrays, self._numbers_of_step)

    def _numbers_of_step(self, batch: Batch) -> None:
        """Let the metrics hold what an own train_step makes of a batch."""
        given = packed(*keras.tree.map_structure(tf.constant, batch))
        own_step.loss_and_gradients(self.model, given, self._loss_scale, inference=True)

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """The numbers of Keras's metrics, as sums over the samples; see `Replica`."""
        samples = 0
        for batch in batches:
            here, arrays = self._samples(batch), self._arrays(batch)
            if samples == 0:
                self._build(arrays)  # even with 0 samples, to know the metrics
                self._metrics.reset()
            if here:
                inputs = keras.tree.map_structure(tf.constant, arrays)
                eagerly = self.model.run_eagerly
                step = self._test_step if eagerly else self._function(self._test_step, arrays)[0]
                try:
                    counted = step(*inputs, self._loss_scale)
                except tf.errors.OpError as error:
                    raise wrong_label(self.model, arrays[1]) or error from None
                self._metrics.weigh(here, [float(number) for number in counted])
            samples += here
        return {"samples": samples, **(self._metrics.sums if samples else {})}

    def metrics_of(self, sums: dict[str, Any]) -> dict[str, float]:
        if sums["samples"]:
            return self._metrics.result(sums)
        return dict.fromkeys(self._metrics.names() if self._built else ["loss"], 0.0)

    def _samples(self, batch: Batch) -> int:
        """The number of samples; ValueError if the model insists on another one."""
        samples = len(keras.tree.flatten(batch[0])[0])
        fixed = self.traits.fixed_batch
        if fixed not in (None, samples) and samples:
            raise ValueError(
                f"model '{self.model.name}' keeps states, so its batches have {fixed} "
                f"samples each, got {samples}"
            )
        return samples
