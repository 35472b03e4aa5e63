"""The numpy layers that a rank has of a model whose layers are cut.

What they compute, and why: tensor.py. `Enter` is f of that page, `Leave` is g. With `sequence`,
each rank has a part of what lies between pairs, along axis 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numba_kernels.spans import SUMS, span
from numba_kernels.team.team import Team
from tutorial_dl.model_parallel.reductions import Reductions
from tutorial_dl.replica.layers import Dropout, Layer
from tutorial_dl.replica.transformer import Embedding


class Enter(Layer):
    """f: all inputs to all ranks. x (s, t, ...), with `sequence` its part (s, .., ...)."""

    def __init__(self, name: str, team: Reductions, sequence: bool) -> None:
        super().__init__(name)
        self.team, self.sequence = team, sequence

    def forward(self, x, w, at):
        return (self.team.gathered(x) if self.sequence else x), None

    def backward_inputs(self, w, saved, gy):
        with span(SUMS[1]):
            if self.sequence:
                return self.team.summed_part(gy), None
            return self.team.allreduce(np.ascontiguousarray(gy)), None


class EnterAgain(Layer):
    """f with `sequence`, and the layer behind it, which keeps only this rank's part of its input.

    The input is gathered again for the gradient of the layer's weights.
    """

    def __init__(self, layer: Layer, team: Reductions) -> None:
        super().__init__(layer.name)
        self.layer, self.team = layer, team

    def arrays(self):
        return self.layer.arrays()

    def forward(self, x, w, at):
        whole = self.team.gathered(x)
        y, saved = self.layer.forward(whole, w, at)
        return y, (x, exchanged(saved, whole, None))

    def backward_inputs(self, w, saved, gy):
        gx, kept = self.layer.backward_inputs(w, saved[1], gy)
        with span(SUMS[1]):
            return self.team.summed_part(gx), kept

    def backward_weights(self, saved, kept, gw):
        x, of_layer = saved
        self.layer.backward_weights(exchanged(of_layer, None, self.team.gathered(x)), kept, gw)


def exchanged(saved: Any, one: Any, other: Any) -> Any:
    """What a layer has saved, with another input; that is all of it, or its first part."""
    if isinstance(saved, tuple):
        return (exchanged(saved[0], one, other), *saved[1:])
    if saved is not one:
        raise AssertionError("this layer does not keep its input")
    return other


class Leave(Layer):
    """g: the sum of all ranks' terms, plus a bias of `size` numbers (0: none)."""

    def __init__(self, name: str, team: Reductions, sequence: bool, bias: str = "", size: int = 0):
        super().__init__(name)
        self.team, self.sequence, self.bias, self.size = team, sequence, bias, size

    def arrays(self):
        return [(self.bias, (self.size,))] if self.size else []

    def forward(self, x, w, at):
        with span(SUMS[0]):
            if self.sequence:
                y = self.team.summed_part(x)
            else:
                y = self.team.allreduce(np.ascontiguousarray(x))
        return (y + w[0] if self.size else y), None

    def backward_inputs(self, w, saved, gy):
        return (self.team.gathered(gy) if self.sequence else gy), gy

    def backward_weights(self, saved, kept, gw):
        if self.size:
            gw[0] += kept.reshape(-1, self.size).sum(axis=0)


class Divide(Layer):
    """Before the first layers on parts of the sequence: each rank takes its part."""

    def __init__(self, team: Reductions) -> None:
        super().__init__("divide the sequence")
        self.team = team

    def forward(self, x, w, at):
        if x.ndim < 3:
            raise ValueError(
                f"the sequence-parallel form divides (samples, positions, ...), got {x.shape}: use "
                "sequence=False"
            )
        return self.team.part(x), None

    def backward_inputs(self, w, saved, gy):
        return self.team.gathered(gy), None


class Join(Layer):
    """Behind the last of these layers: all ranks go on with the whole sequence, alike."""

    def __init__(self, team: Reductions) -> None:
        super().__init__("join the sequence")
        self.team = team

    def forward(self, x, w, at):
        return self.team.gathered(x), None

    def backward_inputs(self, w, saved, gy):
        return self.team.part(gy), None


class WithoutBias(Layer):
    """A layer whose last array is a bias that it adds to its output; here `Leave` adds it, once."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(layer.name)
        self.layer, self.shape = layer, layer.arrays()[-1][1]

    def arrays(self):
        return self.layer.arrays()[:-1]

    def _with(self, w):
        return [*w, np.zeros(self.shape, w[0].dtype)]

    def forward(self, x, w, at):
        return self.layer.forward(x, self._with(w), at)

    def backward_inputs(self, w, saved, gy):
        return self.layer.backward_inputs(self._with(w), saved, gy)

    def backward_weights(self, saved, kept, gw):
        self.layer.backward_weights(saved, kept, self._with(gw))


class TokenRows(Layer):
    """This rank's rows of an embedding's table: 0 for tokens that other ranks hold.

    Rank 0 also adds the rows of positions, so that the sum over ranks has them once.
    """

    def __init__(self, layer: Embedding, team: Team) -> None:
        super().__init__(layer.name)
        self.whole, self.team, self.rows = layer, team, layer.tokens // team.size
        self.first = team.rank * self.rows

    def arrays(self):
        (tokens, (_, width)), positions = self.whole.arrays()
        return [(tokens, (self.rows, width)), positions]

    def forward(self, x, w, at):
        x = self.whole.checked(x).astype(np.int64) - self.first
        mine = (x >= 0) & (x < self.rows)
        y = w[0][np.where(mine, x, 0)] * mine[..., None]
        if self.team.rank == 0:
            y += w[1][: x.shape[1]]
        return y, (x, mine)

    def backward_inputs(self, w, saved, gy):
        return None, gy

    def backward_weights(self, saved, kept, gw):
        x, mine = saved
        np.add.at(gw[0], x[mine], kept[mine])
        gw[1][: x.shape[1]] += kept.sum(axis=0)  # on all ranks: the positions are whole on each


class PartOfDropout(Dropout):
    """Dropout of a part of the sequence, with this part of the masks of the whole."""

    def __init__(self, layer: Dropout, team: Reductions) -> None:
        super().__init__(layer.name, layer.rate, layer.number)
        self.team = team

    def forward(self, x, w, at):
        if not at.training or not self.rate:
            return x, None
        s, _, *rest = x.shape
        ones = np.ones((s, self.team.length, *rest), x.dtype)
        mask = self.team.part(super().forward(ones, w, at)[0])
        return x * mask, mask
