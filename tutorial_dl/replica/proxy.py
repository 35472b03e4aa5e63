"""`ReplicaProxy`: a Replica around another object, whose members it passes on.

`Accumulating` is one: gradient accumulation, a batch in several micro-batches for one update.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tutorial_dl.data.dataset import Batch, Data, share
from tutorial_dl.replica.base import Replica, Traits, gradient_is_finite, measure, metrics_of


class Passed:
    """A member that an object passes on from its `inner`; a plain Replica's if that has none."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, outer: Any, owner: type) -> Any:
        try:
            return getattr(outer.inner, self.name)
        except AttributeError:
            return getattr(super(self.owner, outer), self.name)

    def __set__(self, outer: Any, value: Any) -> None:
        setattr(outer.inner, self.name, value)


class ReplicaProxy(Replica):
    """A Replica around a Replica, or around an object that has the required members of one.

    Members of a Replica that the object lacks have their defaults.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        traits = getattr(inner, "traits", None) or Traits(uses_team=hasattr(inner, "use_team"))
        # A wrapper that passes on what it lacks may override `place` alone.
        swaps = traits.swaps and (isinstance(inner, Replica) or hasattr(type(inner), "swap"))
        self.traits = replace(traits, swaps=swaps)

    parameters, gradient, segments, state, random, holding = (Passed() for _ in range(6))
    trained, loss_scale = Passed(), Passed()
    compute_gradient, predict, save, place = (Passed() for _ in range(4))
    own_optimizer, use_team, constrain = (Passed() for _ in range(3))

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        return measure(self.inner, batches)

    def metrics_of(self, sums: dict[str, Any]) -> dict[str, float]:
        return metrics_of(self.inner, sums)

    def __getattr__(self, name: str) -> Any:
        """What the traits say that the object has, and what else a user looks for there."""
        return getattr(vars(self)["inner"], name)


class Accumulating(ReplicaProxy):
    """A Replica around another one, which gets each batch in `times` micro-batches.

    A replica's memory grows with the samples per call, so a batch that is too large is cut. The
    gradient of the whole batch is the mean of the micro-batches' gradients, weighted by their
    samples s_j: g = sum_j s_j g_j / sum_j s_j. The update equals that of the whole batch, at the
    cost of one more vector. (Only layers that use the whole batch, such as batch normalisation,
    compute something different.)
    """

    gradient_is_finite = True

    def __init__(self, replica: Replica, times: int):
        check_times(times)
        super().__init__(replica)
        # The pieces' gradients are added up in one vector.
        self.traits = replace(self.traits, checks_gradient=True, keeps_apart=False)
        self.times, self._sum = times, np.zeros_like(replica.gradient)

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """As for the whole batch; every piece is computed, even one without samples."""
        seeds = None if self.inner.random is None else np.array(self.inner.random)
        try:
            return self._pieces(Data(*batch))
        except BaseException:
            if seeds is not None and seeds.size:
                self.inner.random = seeds  # a step that failed is made again alike
            raise

    def _pieces(self, data: Data) -> tuple[float, int]:
        total, loss = len(data), 0.0
        self._sum[:] = 0
        self.gradient_is_finite = True
        for piece in range(self.times):
            part = data.take(share(total, piece, self.times))
            of_piece, samples = self.inner.compute_gradient(part)
            if samples:
                self.gradient_is_finite &= gradient_is_finite(self.inner)
                gradient = self.inner.gradient
                gradient *= gradient.dtype.type(samples / total)
                self._sum += gradient
                loss += of_piece * samples / total
        self.inner.gradient[:] = self._sum
        return loss, total


def check_times(times: int) -> None:
    """Raise ValueError unless a batch can be computed in so many micro-batches."""
    if times < 2:
        raise ValueError(f"pieces per batch must be at least 2 to accumulate, got {times}")
