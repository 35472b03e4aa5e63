"""`Sequences`: which part of each sequence this rank has, and the rings that need it."""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_kernels.team.collectives import Collectives
from tutorial_dl.model_parallel.context import RingAttention
from tutorial_dl.model_parallel.positions import Positions


class Sequences:
    """The part of one rank, of sequences of `length` positions.

    Args:
        team: The ranks that share each sequence, C.
        causal: Whether some attention is causal. The order is then "zigzag", else "in order"; it is
            one for the whole model.

    Raises:
        ValueError: If ranks would have parts of different lengths. Their means would then count
            positions differently.
    """

    def __init__(self, team: Collectives, causal: bool, length: int) -> None:
        if length < 1 or length % team.size:
            able = [str(n) for n in range(1, length + 1) if length % n == 0]
            near = length - length % team.size
            lengths = " or ".join(str(n) for n in (near, near + team.size) if n)
            raise ValueError(
                f"a sequence of {length} positions can't be divided evenly over {team.size} ranks: "
                f"use sequences of {lengths}, or {', '.join(able[:8])} ranks"
            )
        self.team, self._rings = team, {}
        self.positions = Positions(length, team.size, "zigzag" if causal else "in order")

    @property
    def mine(self) -> np.ndarray:
        """The numbers of this rank's positions, in the order in which it has them."""
        return self.positions.kept_by(self.team.rank)

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent through rings."""
        return sum(ring.sent for ring in self._rings.values())

    def ring(self, causal: bool) -> RingAttention:
        """The ring attention; one for all layers."""
        if causal not in self._rings:
            where = self.positions
            self._rings[causal] = RingAttention(self.team, where.length, causal, where.order)
        return self._rings[causal]

    def take(self, x: np.ndarray) -> np.ndarray:
        """This rank's part of x (s, t, ...)."""
        return self.positions.take(x, self.team.rank, 1)

    def gather(self, part: np.ndarray) -> np.ndarray:
        """The whole x (s, t, ...) on all ranks, from their parts. Collective."""
        every = self.team.allgather(np.require(part, requirements="CW"))
        return self.positions.join([one.reshape(part.shape) for one in every], 1)

    def summed(self, found: dict[str, Any]) -> dict[str, Any]:
        """What `Replica.measure` found in each part, added up; as many samples. Collective."""
        shapes = {name: np.shape(value) for name, value in found.items() if name != "samples"}
        flat = [np.ravel(np.asarray(found[name], np.float64)) for name in shapes]
        if self.team.size == 1 or not flat:
            return found
        total = self.team.allreduce(np.concatenate(flat))
        ends = np.cumsum([part.size for part in flat])[:-1]
        parts = zip(shapes.items(), np.split(total, ends), strict=True)
        return {"samples": found["samples"]} | {n: x.reshape(shape) for (n, shape), x in parts}
