"""`KerasXla`: gradients and evaluation compiled by XLA, where that is faster, and how to find out.

TensorFlow computes a graph operation by operation, or has XLA compile it into one function. Which
is faster depends on the network by a factor of two either way, so the Trainer measures both on the
first real batch (training/compilation.py). XLA compiles for one number of samples; batches of
another size (the last of an epoch) are computed by the graph.
"""

import time
from collections.abc import Callable

import numpy as np

from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.keras_metrics import unchanged
from tutorial_dl.replica.keras_steps import KerasSteps, keras, tf

STEPS = {"gradient": "_gradient_step", "evaluation": "_test_step"}
ALIKE = {"float32": 1e-3, "float64": 1e-6}  # relative difference between the two ways
ALIKE_IN_HALF = 5e-2
SECONDS, LEAST, MOST = 0.3, 3, 30  # of measuring one way, and how many calls


class KerasXla(KerasSteps):
    """The part of a KerasReplica that chooses how TensorFlow computes its steps."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self._expected: dict[str, list[np.ndarray]] = {}  # outcomes of graphs, while measuring

    def why_no_xla(self) -> str:
        """Why the model can't be compiled by XLA; "" if it may be tried."""
        if self.model.run_eagerly:
            return "it was compiled with run_eagerly=True"
        if self._collective:
            return "its ranks communicate while they compute a gradient"
        if self._own_step:
            return "its class has a train_step of its own"
        if self.traits.changes_parameters:
            return "its SpectralNormalization changes weights while it computes"
        return "it keeps states between batches" if self.traits.fixed_batch else ""

    @property
    def may_compile(self) -> bool:
        """Whether the Trainer may choose XLA.

        Not with embeddings: a row that they do not have is an error in a graph, and XLA would take
        the last one. `jit_compile=True` in the user's `compile` is a choice, too.
        """
        embeds = any(isinstance(x, keras.layers.Embedding) for x in self.model._flatten_layers())
        return not (self._refused or self.model.jit_compile is True or embeds)

    @property
    def _refused(self) -> bool:
        return bool(self.traits.refuses_xla or self._calls_python)

    @property
    def compiled(self) -> dict[str, str]:
        if self.model.run_eagerly:
            return dict.fromkeys(STEPS, "eager")
        by_xla = {} if self._refused else self._by_xla
        return {what: "xla" if step in by_xla else "graph" for what, step in STEPS.items()}

    def compile_by(self, what: str, how: str, samples: int) -> None:
        """Compute the gradient, or the evaluation, of batches of so many samples by XLA or not."""
        self._by_xla.pop(STEPS[what], None)
        if how == "xla":
            self._by_xla[STEPS[what]] = samples

    def seconds_by(self, what: str, how: str, batch: Batch, once: bool = False) -> float | None:
        """The median time of a step on this batch; it leaves no trace in the model.

        Measure "graph" first. None: XLA can't compile the step, or computes something else.
        `once`: the time of one call, after the one that traces the graph.
        """
        before = dict(self._by_xla)
        self.compile_by(what, how, len(keras.tree.flatten(batch[0])[0]))
        step = compared = getattr(self, STEPS[what])
        if what == "gradient" and self._seeds:  # XLA draws other masks than a graph
            compared = self._step_in_inference
            if how == "xla":
                self._by_xla[compared.__name__] = self._by_xla[STEPS[what]]
        arrays = self._arrays(batch)
        self._build(arrays)
        try:
            with unchanged(self.model):
                found = self._outcome(what, self._run(compared, arrays))
                if how == "graph":
                    self._expected[what] = found
                elif not self._alike(self._expected.pop(what), found):
                    return None
            with unchanged(self.model):
                self._run(step, arrays)
                return _median_seconds(lambda: self._run(step, arrays), 1 if once else MOST)
        except Exception:  # of any kind, from TensorFlow or the model
            if how == "graph":
                raise
            return None
        finally:
            self._by_xla = before

    def _outcome(self, what: str, found: list[tf.Tensor]) -> list[np.ndarray]:
        """Loss and gradients, or the numbers of all metrics."""
        if what == "evaluation":
            return [np.asarray(v.value) for v in self._metrics.variables().values()]
        return [np.asarray(one) for one in (found[0], *found[2 : 2 + len(self.segments)])]

    def _alike(self, expected: list[np.ndarray], found: list[np.ndarray]) -> bool:
        near = ALIKE.get(str(self.dtype), ALIKE_IN_HALF)
        size = max(float(np.linalg.norm(one)) for one in expected)
        return all(
            bool(np.linalg.norm(a - b) <= near * max(float(np.linalg.norm(a)), 1e-3 * size))
            for a, b in zip(expected, found, strict=True)
        )


def _median_seconds(call: Callable, most: int) -> float:
    taken: list[float] = []
    while len(taken) < min(LEAST, most) or (sum(taken) < SECONDS and len(taken) < most):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken))
