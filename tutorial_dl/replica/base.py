"""What a Strategy and a Trainer need to know of a model: two flat vectors and a way to fill one.

A network's weights are many arrays of many shapes; every rule of parallel training treats them as
one long vector. A Replica is the bridge: it owns the model, and shows it as `parameters[n]` and
`gradient[n]`, with `segments` saying which stretch of the vector is which layer.

`place` is how a strategy puts the two vectors where it needs them, typically into memory that all
ranks of a node share (`Team.empty`), so that reducing gradients copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Protocol, runtime_checkable

import numpy as np

Batch = tuple[Any, Any]  # (inputs, targets): arrays, or tuples/dicts of arrays, samples first


@dataclass(frozen=True)
class Segment:
    """One layer's array inside the flat vector: `vector[offset : offset + size].reshape(shape)`."""

    name: str
    offset: int  # elements
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    def of(self, vector: np.ndarray) -> np.ndarray:
        """The view of this segment in `vector` (no copy), in its own shape."""
        return vector[self.offset : self.offset + self.size].reshape(self.shape)


def lay_out(arrays: Iterable[tuple[str, tuple[int, ...]]], align: int = 1) -> tuple[Segment, ...]:
    """Place named arrays one after the other; each starts at a multiple of `align` elements.

    Elements that only fill a gap hold zero and have zero gradient, which every optimizer here
    leaves at zero.
    """
    segments, end = [], 0
    for name, shape in arrays:
        offset = -(-end // align) * align
        segments.append(Segment(name, offset, tuple(shape)))
        end = offset + segments[-1].size
    return tuple(segments)


def length(segments: tuple[Segment, ...]) -> int:
    """Elements a flat vector needs to hold `segments`."""
    return max((s.offset + s.size for s in segments), default=0)


@runtime_checkable
class Replica(Protocol):
    """One rank's copy of the model.

    Attributes:
        parameters, gradient: Flat arrays, shape (n,), same dtype (float32 unless asked otherwise).
        segments: Where each layer's array lies in them.
        swap: Optional, a method without arguments: the memory of `parameters` and that of
            `gradient` change places, contents included, so that nothing is copied. Without it they
            stay.
        state: Flat array, shape (k,): what is averaged over ranks but not optimised (moving
            statistics of batch normalisation); length 0 where there is none. May be a read-only
            copy: to change it, assign the whole, `replica.state = average`.
    """

    parameters: np.ndarray
    gradient: np.ndarray
    segments: tuple[Segment, ...]
    state: np.ndarray

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """Fill `gradient` with the gradient of the batch's mean loss; return (mean loss, samples).

        A batch of 0 samples fills `gradient` with zeros and returns (0.0, 0).
        """
        ...

    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Metrics averaged over all samples of `batches`, with at least "loss" and "samples"."""
        ...

    def place(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """Move both vectors, values included, into the given memory and use it from now on.

        Both must be contiguous, of this replica's length and dtype, and 64-byte aligned. Either may
        be what the replica holds already: then it stays. Others may change `parameters` between
        two calls of this replica: it keeps no copy of them.
        """
        ...


def can_swap(replica: Replica) -> bool:
    """Whether its class has `swap`, made by whoever made its `place`, or by a class derived."""
    classes = type(replica).__mro__
    swap, place = (
        next((i for i, one in enumerate(classes) if name in vars(one)), len(classes))
        for name in ("swap", "place")
    )
    return swap < len(classes) and swap <= place


def check_place(replica: Replica, parameters: np.ndarray, gradient: np.ndarray) -> None:
    """Raise ValueError unless a replica's vectors can move into this memory (see `place`)."""
    like = replica.parameters
    for name, vector in (("parameters", parameters), ("gradient", gradient)):
        if vector.shape != like.shape or vector.dtype != like.dtype:
            raise ValueError(
                f"place: {name} is {vector.dtype} {vector.shape}, "
                f"expected {like.dtype} {like.shape}"
            )
        if not vector.flags.c_contiguous or not vector.flags.writeable:
            raise ValueError(f"place: {name} must be contiguous and writeable")
        if vector.ctypes.data % 64:
            raise ValueError(
                f"place: {name} starts at address {vector.ctypes.data:#x}, "
                "expected a multiple of 64 bytes (use Team.empty)"
            )


def finite_gradient(replica: Replica, batch: Batch, **options) -> tuple[float, int]:
    """`replica.compute_gradient(batch, ...)`; FloatingPointError if that or the loss is not finite.

    Asked on every rank before anything is exchanged: one rank's NaN must not reach all weights,
    and afterwards nobody could say whose it was.
    """
    loss, samples = replica.compute_gradient(batch, **options)
    if not isfinite(loss):
        raise FloatingPointError(f"the loss is {loss}")
    if not gradient_is_finite(replica):
        raise FloatingPointError("the gradient is not finite")
    return loss, samples


def gradient_is_finite(replica: Replica) -> bool:
    """Is the gradient that `compute_gradient` has just filled free of NaN and infinity?"""
    if hasattr(replica, "gradient_is_finite"):  # it found out in passing
        return replica.gradient_is_finite
    return isfinite(np.dot(replica.gradient, replica.gradient))  # one quick pass finds any NaN
