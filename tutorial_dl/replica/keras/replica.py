"""`KerasReplica`: a compiled Keras model as a Replica, computed by TensorFlow on our memory.

The parts that it is made of: `keras/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch, CompiledOptimizer
from tutorial_dl.replica.keras import own_step
from tutorial_dl.replica.keras.collective_layers import CollectiveLayer, cause
from tutorial_dl.replica.keras.graphs import Graphs, keras, tf, zeros_like
from tutorial_dl.replica.keras.losses import masked, may_mask
from tutorial_dl.replica.keras.metrics import KerasMetrics, is_empty, packed, unchanged
from tutorial_dl.replica.keras.shape_errors import shape_error, wrong_label
from tutorial_dl.replica.keras.step import NeedsVariables, Step
from tutorial_dl.replica.keras.sums import MetricSums
from tutorial_dl.replica.keras.try_out import Findings, TryOut, known
from tutorial_dl.replica.keras.weights import KerasWeights
from tutorial_dl.replica.keras.xla import Compilation

NOTHING = np.zeros((3, 0), np.int64)


class KerasReplica(KerasWeights):
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

    own, own_factor = NOTHING, 1.0

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        layers = model._flatten_layers()
        self.metrics = KerasMetrics(model)
        self.training, self.testing = MetricSums(self.metrics), MetricSums(self.metrics)
        self.graphs = Graphs(model, autograph=own_step.has_own_step(model))
        self.step = Step(model, self.variables, self.graphs, self.training)
        self._collective = [x for x in layers if isinstance(x, CollectiveLayer)]
        normalized = [x for x in layers if isinstance(x, keras.layers.SpectralNormalization)]
        # Weights that a layer divides by their norm as it computes; see `_settle`.
        self._normalized = {id(layer.kernel) for layer in normalized}
        # State that ranks without samples must not change
        common = {id(v) for layer in self._collective for v in layer.non_trainable_weights}
        common |= {id(layer.vector_u) for layer in normalized}
        self._own_state = [v for v in self.state_variables if id(v) not in common]
        self._may_mask = may_mask(model)
        self._masked = False  # whether an output has a mask; known once `build` was called
        self._team: Any = None  # of the graphs
        self._built = False
        self.loss_scale = 1.0
        self.trained = {}
        refuses = self._why_no_xla()
        draws = bool(self.seed_variables)
        self.compilation = Compilation(self.step, self.run, refuses, draws, self.dtype)
        self.traits = replace(
            self.traits,
            library="keras",
            saves_optimizer=True,
            uses_team=True,
            fixed_batch=own_batch_size(model),
            changes_parameters=bool(normalized),
            computes_in_float16=any(layer.compute_dtype == "float16" for layer in layers),
            refuses_xla=refuses,
            compiles=True,
            counts_training=True,
            scales_loss=True,
            keeps_apart=True,
            tries_out=True,
        )

    def _why_no_xla(self) -> str:
        """Why the model can't be compiled by XLA; "" if it may be tried."""
        reasons = {
            "it was compiled with run_eagerly=True": self.model.run_eagerly,
            "its ranks communicate while they compute a gradient": self._collective,
            "its class has a train_step of its own": self.step.own,
            "its SpectralNormalization changes weights while it computes": self._normalized,
            "it keeps states between batches": own_batch_size(self.model),
        }
        return next((words for words, holds in reasons.items() if holds), "")

    def use_team(self, team: Any) -> None:
        for layer in self._collective:
            layer.training_team = team
        if team is not self._team:
            self.graphs.clear()  # a graph keeps its team
        self._team = team
        self._share()

    def _share(self) -> None:
        """Note whether graphs exchange something with other ranks."""
        whole = self.step.whole
        needs = self._masked or whole.losses or whole.metrics or whole.states
        shares = needs and self._team is not None and self._team.size > 1
        self.step.team = self._team if shares else None
        self.graphs.calls_python = self.calls_python

    @property
    def calls_python(self) -> bool:
        """Whether graphs call Python, to do so."""
        return bool(self._collective or self.step.team)

    def own_optimizer(self, given: Any = None) -> CompiledOptimizer | None:
        from tutorial_dl.replica.keras.optimizers import compiled_optimizer

        return compiled_optimizer(self.model, self.model.optimizer if given is None else given)

    # Batches

    def arrays(self, batch: Batch) -> Batch:
        """(x, y, w) as numpy arrays, floating-point numbers in the dtype of the model's weights.

        w are weights of the samples; y and w are () if there are none.
        """

        def array(a: Any) -> np.ndarray:
            a = np.asarray(a)
            return a.astype(self.dtype, copy=False) if a.dtype.kind == "f" else a

        parts = (*batch, ()) if len(batch) == 2 else batch
        return tuple(keras.tree.map_structure(array, part) for part in parts)

    def _samples(self, batch: Batch) -> int:
        """The number of samples; ValueError if the model insists on another one."""
        samples, fixed = len(keras.tree.flatten(batch[0])[0]), self.traits.fixed_batch
        if fixed not in (None, samples) and samples:
            raise ValueError(
                f"model '{self.model.name}' keeps states, so its batches have {fixed} "
                f"samples each, got {samples}"
            )
        return samples

    def build(self, batch: Batch) -> None:
        """Make Keras create the variables of losses and metrics, which it can't while tracing."""
        if self._built:
            return
        zeros = zeros_like(batch, self.traits.fixed_batch or 1)
        one = keras.tree.map_structure(tf.constant, zeros)
        try:
            with unchanged(self.model), self.graphs.hidden_chatter():
                self.model.test_step(packed(*one))
        except Exception as error:
            wrong = own_step.no_test_step(self.model) or shape_error(self.model, *zeros[:2])
            raise wrong or self.metrics.failed(one) or error from None
        with self.graphs.hidden_chatter():
            self._masked = self._may_mask and masked(self.model(one[0], training=False))
        self._built = True
        self._share()

    def run(self, step: Callable, batch: Batch) -> list[tf.Tensor]:
        """What a method of `step` returns for a batch, as a graph, or eagerly if the user asks."""
        arrays = self.arrays(batch)
        self.build(arrays)
        try:
            return self._run(step, arrays)
        except NeedsVariables:
            self.step.by_tensors = False
            return self._run(step, arrays)

    def _run(self, step: Callable, arrays: Batch) -> list[tf.Tensor]:
        more = []
        if step.__name__ != "test":
            more = [self._loss_scale, *(self.tensors if self.step.by_tensors else ())]
        try:
            if self.model.run_eagerly:
                return step(*keras.tree.map_structure(tf.constant, arrays), *more)
            return self.graphs.run(step, arrays, *more)
        except tf.errors.OpError as error:
            raise wrong_label(self.model, arrays[1]) or cause(error) from None

    # Gradients

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
                self.build(self.arrays(batch))
            if self._collective or self.step.team or self._normalized:
                self._take_part(batch)
            self.gradient[:] = 0
            self.gradient_is_finite = True
            return 0.0, 0
        loss, numbers, *gradients = self.run(self.step.gradient, batch)
        if len(numbers) and self.step.team is not None and self.step.whole.metrics:
            self.training.add(numbers[:-1], samples, together=int(numbers[-1]))
        elif len(numbers):
            self.training.add(numbers, samples)
        self._settle()
        factor = 1 / self.loss_scale
        addresses = self._join(gradients, factor, apart or (0, 0))
        if apart is not None:
            self._kept = gradients  # or TensorFlow would reuse their memory too early
            self.own, self.own_factor = np.array([self.offsets, self.sizes, addresses]), factor
        return float(loss), samples

    def _take_part(self, batch: Batch) -> None:
        """Without samples: compute on a placeholder of weight 0 (see collective_layers.py).

        The moving statistics of layers that need all ranks are shared and change; other weights
        that are not trained stay as they were.
        """
        joined = {id(v) for v, _ in self.step.whole.states}
        kept = [v for v in self._own_state if id(v) not in joined]
        before = [v.numpy() for v in kept]
        self.run(self.step.gradient_without_samples, zeros_like(batch, 1))
        self._settle()
        for variable, value in zip(kept, before, strict=True):
            variable.assign(value)

    def _settle(self) -> None:
        """After a step: SpectralNormalization assigns weights; copy them to where they were."""
        for i, variable in enumerate(self.variables if self._normalized else ()):
            if id(variable) in self._normalized:
                self.segments[i].view(self.parameters)[...] = variable.numpy()
                self._alias(i)

    @property
    def loss_scale(self) -> float:
        return self._scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._scale, self._loss_scale = float(value), tf.constant(value, self.dtype)

    # Metrics

    @property
    def trained(self) -> dict[str, Any] | None:
        return self.training.sums if self.step.counts else None

    @trained.setter
    def trained(self, sums: dict[str, Any] | None) -> None:
        counts = sums is not None and self.metrics.beyond_loss
        if counts != self.step.counts:
            self.graphs.clear()
        self.step.counts = counts
        if counts:
            self.training.sums = sums

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """The numbers of Keras's metrics, as sums over the samples; see `Replica`."""
        samples = 0
        for batch in batches:
            here = self._samples(batch)
            if samples == 0:
                self.build(self.arrays(batch))  # even with 0 samples, to know the metrics
                self.testing.sums = {}
            if here:
                numbers, *counted = self.run(self.step.test, batch)
                self.testing.add(numbers, here, [float(number) for number in counted])
            samples += here
        return self.testing.sums if samples else {"samples": 0}

    def metrics_of(self, sums: dict[str, Any]) -> dict[str, float]:
        if sums["samples"]:
            return self.metrics.result(sums)
        return dict.fromkeys(self.model.get_metrics_result() if self._built else ["loss"], 0.0)

    def predict(self, x: Any) -> Any:
        """The model's outputs for inputs `x` as numpy arrays, with all layers in inference mode."""
        x, *_ = self.arrays((x, ()))
        self._samples((x,))
        return keras.tree.map_structure(np.asarray, self.model(x, training=False))

    # Before training

    def try_out(self, batch: Batch, shared: bool, by_team: bool = True) -> None:
        self.check_batch(batch, shared)
        if not self._may_mask and not self.step.own and known(self.model, self.metrics):
            return
        arrays, name = self.arrays(batch), self.model.name
        self.build(arrays)
        own, alone = self.step.own, not by_team or self.step.own or self.holding is not None
        if self._masked and shared and alone:
            how = "with an asynchronous strategy, or on one rank"
            if not own:
                how = "with strategy 'synchronous' or an asynchronous one, without accumulate"
            raise ValueError(
                f"model '{name}' has a mask, so its loss is not a mean over samples: use it {how}"
            )
        found, tried = Findings(), TryOut(self.model, arrays)
        with unchanged(self.model):
            if own:
                own_step.check(self.model, self.parameters, arrays, shared)
                with own_step.kept(self.model):
                    found.metrics += self.metrics.try_out(arrays, self._numbers_of_step)
                self.training.by_batch = self.metrics.by_batch
                for i, variable in enumerate(self.variables):
                    if id(variable) in self._normalized:  # it was assigned
                        self._alias(i)
            found.metrics += self.metrics.try_out(arrays)
            whole = bool(found.metrics)
            if tried.n > 1:  # one sample tells nothing
                if not (self._masked or own):
                    found.losses = tried.losses()
                    if shared:
                        tried.check(found.losses)
                if shared:
                    found.states = tried.states()
                whole |= bool(found.losses or tried.mixes_in_inference())
        if shared and alone and (words := found.why()):
            raise ValueError(
                f"model '{name}': {words}, so ranks can't share a batch: use it with strategy "
                "'synchronous', without accumulate and without a train_step of your own"
            )
        self.step.whole = found
        self.traits = replace(self.traits, whole_batches=whole)
        self.graphs.clear()
        self._share()

    def _numbers_of_step(self, batch: Batch) -> None:
        """Let the metrics hold what an own train_step makes of a batch."""
        given = packed(*keras.tree.map_structure(tf.constant, batch))
        own_step.loss_and_gradients(self.model, given, self._loss_scale)

    def check_batch(self, batch: Batch, shared: bool) -> None:
        """Raise ValueError if the model can't train on batches like this one.

        Targets must be labels that the loss takes. If batches are `shared` by ranks, their losses
        must be means over samples, and no layer may wait for ranks of tf.distribute.
        """
        for layer in self.model._flatten_layers() if shared else ():
            if getattr(layer, "synchronized", False) and layer not in self._collective:
                raise ValueError(
                    f"layer '{layer.name}' has synchronized=True, which only tf.distribute heeds: "
                    "convert the model with tutorial_dl.layers.convert(model)"
                )
        arrays = self.arrays(batch)
        if wrong := wrong_label(self.model, arrays[1]):
            raise wrong
        weighted = any(
            getattr(loss, "reduction", "") == "mean_with_sample_weight"
            for loss in keras.tree.flatten(self.model.loss)
        )
        if weighted and shared and not is_empty(arrays[2]):
            raise ValueError(
                f"model '{self.model.name}': a loss with reduction 'mean_with_sample_weight' and "
                "weights of samples is no mean over samples; use 'sum_over_batch_size'"
            )


def own_batch_size(model: keras.Model) -> int | None:
    """Return the batch size in the inputs' shape if a layer is stateful, else None."""
    if not any(getattr(layer, "stateful", False) for layer in model._flatten_layers()):
        return None
    inputs = keras.tree.flatten(getattr(model, "inputs", None) or [])
    return inputs[0].shape[0] if inputs else None
