"""The base class of all compression methods: constant settings, a state, and checks."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..allreduce import calls
from ..errors import MismatchError

DTYPES = ("float32", "float64")


@dataclass
class State:
    """The state that a rank keeps between calls.

    A checkpoint needs only each rank's `residual` and `basis`: copy both into a new `init`, and
    training continues as if it had not stopped.
    """

    n: int  # elements of the gradient
    dtype: np.dtype
    residual: np.ndarray  # (n,): still to be sent; (0,) for a method without error feedback
    basis: np.ndarray  # flat: PowerSGD's Q of all matrices, the same on all ranks; else (0,)
    layers: np.ndarray  # what `init` found in the segments, one row each


class Method:
    """Base class: implements `init` and `allreduce` with the method's `lay_out` and `reduce`."""

    remembers = False  # whether it keeps a residual

    def init(self, n: int, segments: Iterable | None = None, dtype=np.float32) -> State:
        """Return the state for gradients of `n` elements before the first call. It sends nothing.

        Args:
            n: number of elements of the gradient.
            segments: its layers, objects with `offset` (elements) and `shape`. PowerSGD needs
                them; Adasum can use them (offsets are enough); other methods ignore them.
            dtype: float32 or float64, the dtype of the gradients.
        """
        dtype = checked(n, dtype)
        layers, basis = self.lay_out(n, segments, dtype)
        return State(n, dtype, np.zeros(n * self.remembers, dtype), basis, layers)

    def allreduce(self, team, gradient: np.ndarray, state: State, op: str = "mean") -> np.ndarray:
        """Replace `gradient` by its approximate reduction ("mean" or "sum") over all ranks.

        The result is the same, bit for bit, on all ranks. With a single rank, it is the gradient
        after compression. NaN and infinity don't vanish. `state` is this rank's, from `init`.

        Raises:
            MismatchError: on all ranks, if they made different calls.
            TypeError, ValueError: an argument cannot be used.
        """
        flat = calls.vector(gradient, "gradient")
        if op not in ("mean", "sum"):
            raise ValueError(f"op of a compressed allreduce must be mean or sum, got {op!r}")
        if flat.size != state.n:
            raise ValueError(f"gradient has {flat.size} elements, but its state has {state.n}")
        if flat.dtype != state.dtype:
            raise TypeError(f"gradient has dtype {flat.dtype}, but its state has {state.dtype}")
        agree(team, f"{self}.allreduce({flat.dtype}[{flat.size}], op={op!r})", state.layers)
        self.reduce(team, flat, state, op)
        return gradient

    def bytes(
        self, n: int, ranks: int, segments: Iterable | None = None, dtype=np.float32
    ) -> float:
        """Return the bytes of payload that a rank sends per call, averaged over the ranks.

        For top-k this is an upper bound. An inner allreduce is counted as 2 (p - 1) / p times its
        length, as ring and Rabenseifner send. The few words with which ranks check that they make
        the same call are not counted.
        """
        if ranks < 1:
            raise ValueError(f"ranks must be at least 1, got {ranks}")
        dtype = checked(n, dtype)
        return self.sent(n, ranks, self.lay_out(n, segments, dtype)[0], dtype.itemsize)

    # A method overrides these

    def lay_out(self, n: int, segments, dtype) -> tuple[np.ndarray, np.ndarray]:
        """Return (layers, basis) of a new state."""
        return np.zeros((0, 4), np.int64), np.zeros(0, dtype)

    def reduce(self, team, gradient: np.ndarray, state: State, op: str) -> None:
        """Do the work of `allreduce`, for a flat gradient and checked arguments."""
        raise NotImplementedError

    def sent(self, n: int, ranks: int, layers: np.ndarray, itemsize: int) -> float:
        raise NotImplementedError


def checked(n: int, dtype) -> np.dtype:
    if not 0 <= n < 2**31:
        raise ValueError(f"n must be from 0 to 2^31 - 1 elements, got {n}")
    dtype = np.dtype(dtype)
    if dtype.name not in DTYPES:
        raise TypeError(f"dtype of gradients must be {' or '.join(DTYPES)}, got {dtype}")
    return dtype


def agree(team, call: str, layers: np.ndarray) -> None:
    """Raise MismatchError on all ranks unless all made the same `call` on the same layers.

    The collectives underneath would not detect a mean on one rank and a sum on another, nor indices
    that don't fit.
    """
    if team.size == 1:
        return
    words = np.array([1, -1]) * zlib.crc32(layers.tobytes(), zlib.crc32(call.encode()))
    team.allreduce(words, "max")
    if words[0] != -words[1]:  # the largest checksum differs from the smallest
        texts = team.allgather(np.frombuffer(call.encode(), np.uint8).astype(np.int32))
        lines = [bytes(text.astype(np.uint8)).decode() for text in texts]
        asked = lines if len(set(lines)) > 1 else [f"{line} with other segments" for line in lines]
        raise MismatchError(
            dict(enumerate(asked)),
            "ranks made different calls: "
            + "; ".join(f"rank {rank} {text}" for rank, text in enumerate(asked)),
        )


def block_of(n: int, ranks: int, multiple: int = 16) -> int:
    """Return the elements per block if n are divided into `ranks` equal blocks of cache lines."""
    return -(-n // (ranks * multiple)) * multiple
