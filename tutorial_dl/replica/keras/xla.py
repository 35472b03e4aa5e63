"""`Compilation`: gradients and evaluation compiled by XLA, where that is faster.

TensorFlow computes a graph operation by operation, or has XLA compile it into one function. Which
is faster depends on the network by a factor of two either way, so the Trainer measures both on the
first real batch (runtime/compilation.py). XLA compiles for one number of samples; batches of
another size (the last of an epoch) are computed by the graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.keras.graphs import ANY, keras
from tutorial_dl.replica.keras.metrics import unchanged
from tutorial_dl.replica.keras.step import Step

STEPS = {"gradient": "gradient", "evaluation": "test"}  # methods of Step
ALIKE = {"float32": 1e-3, "float64": 1e-6}  # relative difference between the two ways
ALIKE_IN_HALF = 5e-2
SECONDS, LEAST, MOST = 0.3, 3, 30  # of measuring one way, and how many calls


class Compilation:
    """How TensorFlow computes the steps of a model, and how long that takes.

    Args:
        run: Computes one of the steps for a batch (`KerasReplica.run`).
        refuses: Why XLA can't compile them; "" if it may be tried.
        draws: Whether layers draw random numbers.
    """

    def __init__(self, step: Step, run: Callable, refuses: str, draws: bool, dtype: Any) -> None:
        self.model, self.step, self.dtype = step.model, step, dtype
        self._run, self.refuses, self._draws = run, refuses, draws
        self.by_xla = step.graphs.by_xla
        self._expected: dict[str, list[np.ndarray]] = {}  # outcomes of graphs, while measuring
        if self.model.jit_compile is True and not self.model.run_eagerly:
            self.by_xla["gradient"] = ANY

    @property
    def refused(self) -> bool:
        return bool(self.refuses or self.step.graphs.calls_python)

    @property
    def may_choose(self) -> bool:
        """Whether the Trainer may choose XLA.

        Not with embeddings: a row that they do not have is an error in a graph, and XLA would take
        the last one. `jit_compile=True` in the user's `compile` is a choice, too.
        """
        embeds = any(isinstance(x, keras.layers.Embedding) for x in self.model._flatten_layers())
        return not (self.refused or self.model.jit_compile is True or embeds)

    @property
    def chosen(self) -> dict[str, str]:
        """ "graph", "xla" or "eager" for "gradient" and "evaluation"."""
        if self.model.run_eagerly:
            return dict.fromkeys(STEPS, "eager")
        by_xla = {} if self.refused else self.by_xla
        return {what: "xla" if step in by_xla else "graph" for what, step in STEPS.items()}

    def choose(self, what: str, how: str, samples: int) -> None:
        """Compute the gradient, or the evaluation, of batches of so many samples by XLA or not."""
        self.by_xla.pop(STEPS[what], None)
        if how == "xla":
            self.by_xla[STEPS[what]] = samples

    def seconds(self, what: str, how: str, batch: Batch, once: bool = False) -> float | None:
        """The median time of a step on this batch; it leaves no trace in the model.

        Measure "graph" first. None: XLA can't compile the step, or computes something else.
        `once`: the time of one call, after the one that traces the graph.
        """
        before = dict(self.by_xla)
        self.choose(what, how, len(keras.tree.flatten(batch[0])[0]))
        step = compared = getattr(self.step, STEPS[what])
        if what == "gradient" and self._draws:  # XLA draws other masks than a graph
            compared = self.step.gradient_in_inference
            if how == "xla":
                self.by_xla[compared.__name__] = self.by_xla[STEPS[what]]
        try:
            with unchanged(self.model):
                outputs = self._run(compared, batch)
                # Loss and gradients, or the numbers of all metrics
                kept = outputs[:1] if what == "evaluation" else (outputs[0], *outputs[2:])
                found = [np.asarray(one) for one in kept]
                if how == "graph":
                    self._expected[what] = found
                elif not self._alike(self._expected.pop(what), found):
                    return None
            with unchanged(self.model):
                self._run(step, batch)
                return _median_seconds(lambda: self._run(step, batch), 1 if once else MOST)
        except Exception:  # of any kind, from TensorFlow or the model
            if how == "graph":
                raise
            return None
        finally:
            self.by_xla.clear()
            self.by_xla.update(before)

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
