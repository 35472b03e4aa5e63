"""What all ways of compressing share: settings that don't change, a state that does, and checks."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..allreduce import calls
from ..errors import MismatchError

DTYPES = ("float32", "float64")


@dataclass
class State:
    """What a rank remembers from call to call.

    `residual` and `basis` are all there is to save, on each rank its own: put both back into a
    fresh `init` and training goes on as if it had not stopped.
    """

    n: int  # elements of the gradient
    dtype: np.dtype
    residual: np.ndarray  # (n,): what is yet to be sent; (0,) where a method leaves nothing behind
    basis: np.ndarray  # flat: PowerSGD's Q of all matrices, the same on all ranks; (0,) elsewhere
    layers: np.ndarray  # what `init` found in the segments, a row each


class Method:
    """Base class: `init` and `allreduce` on top of `lay_out` and `reduce` of the method."""

    remembers = False  # whether it keeps a residual

    def init(self, n: int, segments: Iterable | None = None, dtype=np.float32) -> State:
        """The state for gradients of `n` elements before the first call; no communication.

        Args:
            n: elements of the gradient
            segments: the layers in it, objects with `offset` (elements) and `shape`. PowerSGD
                needs them, Adasum takes them (offsets alone will do); others don't look.
            dtype: float32 or float64, that of the gradients

        Raises ValueError or TypeError for what can't be used, in one line.
        """
        dtype = checked(n, dtype)
        layers, basis = self.lay_out(n, segments, dtype)
        return State(n, dtype, np.zeros(n * self.remembers, dtype), basis, layers)

    def allreduce(self, team, gradient: np.ndarray, state: State, op: str = "mean") -> np.ndarray:
        """Replace `gradient` by its reduction over all ranks of `team`, in place; returns it.

        Args:
            gradient: contiguous, of the length and dtype that `state` was made for
            state: this rank's own, from `init`; renewed in place
            op: "mean" or "sum" (of which every method is an approximation of its own)

        The result is the same, bit for bit, on all ranks. One rank alone gets what is left of its
        gradient by the compression. NaN and infinity don't vanish.

        Raises MismatchError on all ranks if they called different things, and what a Team raises;
        TypeError and ValueError for arguments that can't be used.
        """
        flat = calls.vector(gradient, "gradient")
        if op not in ("mean", "sum"):
            raise ValueError(f"op is {op!r}; a compressed allreduce does mean or sum")
        if flat.size != state.n:
            raise ValueError(f"gradient has {flat.size} elements, its state {state.n}")
        if flat.dtype != state.dtype:
            raise TypeError(f"gradient has dtype {flat.dtype}, its state {state.dtype}")
        agree(team, f"{self}.allreduce({flat.dtype}[{flat.size}], op={op!r})", state.layers)
        self.reduce(team, flat, state, op)
        return gradient

    def bytes(
        self, n: int, ranks: int, segments: Iterable | None = None, dtype=np.float32
    ) -> float:
        """Bytes of payload that a rank sends in a call (at most, for top-k), the average rank's.

        An allreduce inside is counted as 2 (p - 1) / p of its length, as ring and Rabenseifner
        send; the few words by which ranks make sure that they agree are left out.
        """
        if ranks < 1:
            raise ValueError(f"ranks is {ranks}; 1 or more is needed")
        dtype = checked(n, dtype)
        return self.sent(n, ranks, self.lay_out(n, segments, dtype)[0], dtype.itemsize)

    # What a method brings

    def lay_out(self, n: int, segments, dtype) -> tuple[np.ndarray, np.ndarray]:
        """(layers, basis) of a new state."""
        return np.zeros((0, 4), np.int64), np.zeros(0, dtype)

    def reduce(self, team, gradient: np.ndarray, state: State, op: str) -> None:
        """What `allreduce` does with a flat gradient, all arguments checked."""
        raise NotImplementedError

    def sent(self, n: int, ranks: int, layers: np.ndarray, itemsize: int) -> float:
        """What `bytes` returns."""
        raise NotImplementedError


def checked(n: int, dtype) -> np.dtype:
    if not 0 <= n < 2**31:
        raise ValueError(f"n is {n}; from 0 to 2^31 - 1 elements can be compressed at a time")
    dtype = np.dtype(dtype)
    if dtype.name not in DTYPES:
        raise TypeError(f"gradients have dtype {dtype}; {' or '.join(DTYPES)} is needed")
    return dtype


def agree(team, call: str, layers: np.ndarray) -> None:
    """MismatchError on all ranks unless all of them made the same `call` on the same layers.

    The collectives underneath would find lengths that differ, but neither a mean here and a sum
    there, nor indices that don't fit.
    """
    if team.size == 1:
        return
    words = np.array([1, -1]) * zlib.crc32(layers.tobytes(), zlib.crc32(call.encode()))
    team.allreduce(words, "max")
    if words[0] != -words[1]:  # the largest isn't the smallest
        texts = team.allgather(np.frombuffer(call.encode(), np.uint8).astype(np.int32))
        lines = [bytes(text.astype(np.uint8)).decode() for text in texts]
        asked = lines if len(set(lines)) > 1 else [f"{line} with other segments" for line in lines]
        raise MismatchError(
            "ranks called different things: "
            + "; ".join(f"rank {rank} {text}" for rank, text in enumerate(asked))
        )


def block_of(n: int, ranks: int, multiple: int = 16) -> int:
    """Elements of each of `ranks` equal blocks that hold n: whole cache lines of float32."""
    return -(-n // (ranks * multiple)) * multiple


def offsets_of(segments: Iterable | None) -> list[int]:
    """Where layers begin; one layer without segments. ValueError unless ascending from 0."""
    if segments is None:
        return [0]
    offsets = [int(getattr(segment, "offset", segment)) for segment in segments]
    if not offsets or offsets[0] != 0 or offsets != sorted(offsets):
        raise ValueError(f"layers begin at {offsets}; ascending offsets from 0 are needed")
    return offsets
