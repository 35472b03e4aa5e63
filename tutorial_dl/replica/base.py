"""`Replica`: a model as two flat vectors, the interface that strategies and the Trainer use.

A network's weights are many arrays of many shapes; every rule of parallel training treats them as
one long vector. A Replica connects the two: it owns the model and presents it as `parameters[n]`
and `gradient[n]`, where `segments` lists the part of the vectors that belongs to each layer.

With `place`, a strategy moves the two vectors where it needs them, typically into memory that all
ranks of a node share (`Team.empty`), so that reducing gradients needs no copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, prod
from typing import Protocol, runtime_checkable

import numpy as np

from tutorial_dl.data.dataset import Batch


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

    Elements in gaps are zero and have zero gradient, so every optimizer here leaves them at zero.
    """
    segments, end = [], 0
    for name, shape in arrays:
        offset = -(-end // align) * align
        segments.append(Segment(name, offset, tuple(shape)))
        end = offset + segments[-1].size
    return tuple(segments)


def length(segments: tuple[Segment, ...]) -> int:
    """Number of elements of a flat vector that holds `segments`."""
    return max((s.offset + s.size for s in segments), default=0)


@runtime_checkable
class Replica(Protocol):
    """One rank's copy of the model.

    Attributes:
        parameters, gradient: Flat arrays, shape (n,), same dtype (float32 unless asked otherwise).
        segments: The place of each layer's array in them.
        swap: Optional method without arguments that exchanges the memory of `parameters` and
            `gradient`, contents included, without a copy.
        state: Flat array, shape (k,), that is averaged over ranks but not optimised (moving
            statistics of batch normalisation); length 0 if there is none. It may be a read-only
            copy, so assign all of it to change it: `replica.state = average`.
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
        be the vector that the replica already uses. Other code may change `parameters` between two
        calls of this replica, so the replica keeps no copy of them.
        """
        ...


def can_swap(replica: Replica) -> bool:
    """Whether a replica has a `swap` at least as derived as its `place`.

    A class that overrides `place` alone would inherit a `swap` that doesn't fit it.
    """
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
    """Call `replica.compute_gradient(batch, ...)`, and check that loss and gradient are finite.

    Every rank checks before anything is exchanged: one rank's NaN must not reach all weights, and
    afterwards its origin could no longer be found.

    Raises:
        FloatingPointError: If the loss or the gradient is not finite.
    """
    loss, samples = replica.compute_gradient(batch, **options)
    if not isfinite(loss):
        raise FloatingPointError(f"the loss is {loss}")
    if not gradient_is_finite(replica):
        raise FloatingPointError("the gradient is not finite")
    return loss, samples


def gradient_is_finite(replica: Replica) -> bool:
    """Whether the gradient just filled by `compute_gradient` is free of NaN and infinity."""
    if hasattr(replica, "gradient_is_finite"):  # the replica has already checked it
        return replica.gradient_is_finite
    return isfinite(np.dot(replica.gradient, replica.gradient))  # a quick pass that finds any NaN
