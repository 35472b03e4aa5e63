"""Functions of tensors as graphs of TensorFlow, or compiled by XLA: `Graphs`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from tutorial_dl.data.dataset import Batch
from tutorial_dl.tensorflow_chatter import chatter_hidden, quiet

with quiet():
    import keras
    import tensorflow as tf

ANY = -1  # any number of samples
SIZES = 4  # batch sizes of a recurrent network that get graphs of their own


def as_graph(function: Callable, autograph: bool = False, **options: Any) -> Callable:
    """`tf.function` as `Model.fit` uses it: without AutoGraph, which would translate each Python
    function that is called, in time and in files that a killed process leaves in /tmp. So layers
    and losses can't use tensors in `if` and `for`, which they can't in fit either. `autograph`: for
    steps and losses of a user's own, which may be decorated with `tf.function`."""
    return tf.function(function, autograph=autograph, **options)


class Graphs:
    """Steps as graphs: functions of a batch and of further tensors; they return lists of tensors.

    TensorFlow optimises a graph when it first runs, and says on stderr what it could not do; the
    first run has no such chatter.

    A graph is traced once for each structure of batches. With a recurrent layer, it has a fixed
    number of samples, which makes its loop over time 1.4 times faster (LSTM, 338 steps, batch 100:
    50 ms instead of 71 ms). After `SIZES` batch sizes, all others share one graph.

    Attributes:
        by_xla: What XLA computes: a step's name, and of how many samples; ANY: the user's `compile`
            asks for it.
        calls_python: Whether graphs call Python, to exchange something with other ranks.
        checked: Called with each concrete function that was traced.
    """

    def __init__(self, model: keras.Model, autograph: bool = False) -> None:
        layers = model._flatten_layers()
        self.recurrent = any(isinstance(x, keras.layers.RNN) for x in layers)
        self.autograph = autograph
        self.by_xla: dict[str, int] = {}
        self.calls_python = False
        self.checked: Callable[[Any], None] = lambda function: None
        # (samples or None, structure) -> graph, captured variables, dtypes of outputs
        self.functions: dict[Any, tuple[Any, list, list]] = {}
        self._traces_for_xla = False
        self._ran: set[Any] = set()

    def clear(self) -> None:
        """Trace everything anew: what the steps do has changed."""
        self.functions.clear()

    def run(self, step: Callable, batch: Batch, *more: tf.Tensor) -> list[tf.Tensor]:
        """The tensors that a step returns for a batch of arrays, faster than by a call.

        Calling the step of a small network takes 0.3 ms as a Python function, and 0.1 ms as a
        TensorFlow operation, which is possible as no gradient through it is needed.
        """
        function, captured, types = self.function(step, batch, *more)
        inputs = [*(tf.constant(a) for a in tf.nest.flatten(batch)), *more, *captured]
        ran = function in self._ran
        self._ran.add(function)
        with nullcontext() if ran else self.hidden_chatter():
            return tf.raw_ops.StatefulPartitionedCall(args=inputs, Tout=types, f=function)

    def function(self, step: Callable, batch: Batch, *more: tf.Tensor) -> tuple[Any, list, list]:
        leaves = tf.nest.flatten(batch)
        asked = self.by_xla.get(step.__name__)
        xla = not self.calls_python and asked in (len(leaves[0]), ANY)
        structure = (step.__name__, xla, *((a.shape[1:], a.dtype) for a in leaves))
        samples = len(leaves[0]) if self.recurrent else None
        if (samples, structure) not in self.functions:
            own = sum(s is not None and of == structure for s, of in self.functions)
            samples = samples if own < SIZES else None
        key = samples, structure
        if key not in self.functions:
            specs = keras.tree.map_structure(
                lambda a: tf.TensorSpec((samples, *a.shape[1:]), a.dtype), batch
            )
            others = [tf.TensorSpec(t.shape, t.dtype) for t in more]
            self._traces_for_xla = xla
            try:
                function = as_graph(step, self.autograph).get_concrete_function(*specs, *others)
            finally:
                self._traces_for_xla = False
            self.checked(function)
            types = [output.dtype for output in function.outputs]
            self.functions[key] = function, list(function.captured_inputs), types
        return self.functions[key]

    def hidden_chatter(self) -> AbstractContextManager:
        """Within, nobody sees what XLA says of what it can't compile, and oneDNN of what it can't
        compute. A step that waits for other ranks may have to say so."""
        return nullcontext() if self.calls_python else chatter_hidden()

    def compiled(self, function: Callable) -> Callable:
        """`function`, compiled by XLA if the step that is being traced is to be."""
        by_xla = self._traces_for_xla
        return as_graph(function, self.autograph, jit_compile=True) if by_xla else function


def zeros_like(batch: Batch, samples: int) -> Batch:
    """A batch of so many samples that are zeros, or empty text."""

    def zeros(a: np.ndarray) -> np.ndarray:
        return np.full((samples, *a.shape[1:]), b"" if a.dtype.hasobject else 0, a.dtype)

    return keras.tree.map_structure(zeros, batch)
