"""`ContextReplica`: a numpy model whose sequences lie on several ranks (context parallelism).

    grid = Grid(Team(), context=2)                       # D x 2 ranks
    replica = ContextReplica(TransformerReplica(...), grid)
    Trainer(replica, data).fit(5)

Each rank has the whole model and some positions of each sequence: of tokens, of targets, and of
all that lies between the layers. Dense layers, norms and activations compute each position by
itself, so they are those of one rank. Three kinds of layers need more:

    attention     passes keys and values round a ring (context.py)
    embedding     adds the rows of this rank's positions, which are not the first ones
    dropout       draws the masks of the whole sequence, and takes this rank's part of them

With equal parts, the mean over a sample's positions is the mean over ranks of the means over their
positions. So the gradient of a batch is the mean over the D x C ranks of their gradients, which is
what data parallelism computes (strategies/synchronous.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tutorial_dl.model_parallel.grid import Grid
from tutorial_dl.model_parallel.sequences import Sequences
from tutorial_dl.replica.base import Batch, plain
from tutorial_dl.replica.layered import LayeredReplica, flat_layers
from tutorial_dl.replica.layers import Activation, Chain, Dense, Dropout, Layer, LayerNorm
from tutorial_dl.replica.transformer import Attention, Embedding

BY_POSITION = (Dense, Activation, LayerNorm)


class RingHeads(Attention):
    """Attention of this rank's positions to all: x (s, t / C, width), y the same shape."""

    def __init__(self, layer: Attention, sequences: Sequences) -> None:
        super().__init__(layer.name, layer.width, layer.heads, layer.causal)
        self.sequences = sequences

    def forward(self, x, w, at):
        d, ring = self.width, self.sequences.ring(self.causal)
        q, k, v = (self._split(x @ w[i].reshape(d, -1) + w[i + 1].reshape(-1)) for i in (0, 2, 4))
        y, kept = ring.forward(q, k, v)
        c = self._join(y)  # (s, t / C, width)
        return c @ w[6].reshape(-1, d) + w[7], (x, ring, kept, None, None, c)

    def backward_inputs(self, w, saved, gy):
        d, (_, ring, kept, *_) = self.width, saved
        parts = ring.backward(self._split(gy @ w[6].reshape(-1, d).T), kept)
        parts = [self._join(g) for g in parts]
        gx = sum(g @ w[i].reshape(d, -1).T for i, g in zip((0, 2, 4), parts, strict=True))
        return gx, (*parts, gy)


class EmbeddingOfPart(Embedding):
    """Rows of this rank's tokens, and of their positions in the whole sequence."""

    def __init__(self, layer: Embedding, sequences: Sequences) -> None:
        super().__init__(layer.tokens, layer.positions, layer.width)
        self.name, self.sequences = layer.name, sequences

    def forward(self, x, w, at):
        x, mine = self.checked(x), self.sequences.mine
        return w[0][x] + w[1][mine], (x, mine)

    def backward_weights(self, saved, kept, gw):
        x, mine = saved
        np.add.at(gw[0], x, kept)
        gw[1][mine] += kept.sum(axis=0)


class DropoutOfPart(Dropout):
    """Dropout with this rank's part of the masks of whole sequences."""

    def __init__(self, layer: Dropout, sequences: Sequences) -> None:
        super().__init__(layer.name, layer.rate, layer.number)
        self.sequences = sequences

    def forward(self, x, w, at):
        if not at.training or not self.rate:
            return x, None
        s, _, *rest = x.shape
        ones = np.ones((s, self.sequences.positions.length, *rest), x.dtype)
        mask = self.sequences.take(super().forward(ones, w, at)[0])
        return x * mask, mask


OF_PART = {Attention: RingHeads, Embedding: EmbeddingOfPart, Dropout: DropoutOfPart}


def layers_of_part(layers: Sequence[Layer], sequences: Sequences) -> list[Layer]:
    """The layers that compute a part of each sequence; ValueError with the name of one that can't.

    They have the same arrays as the given ones.
    """
    found: list[Layer] = []
    for layer in layers:
        if isinstance(layer, Chain):
            inner = layers_of_part(layer.layers, sequences)
            found.append(Chain(layer.name, inner, layer.residual))
        elif type(layer) in OF_PART:
            found.append(OF_PART[type(layer)](layer, sequences))
        elif type(layer) in BY_POSITION:
            found.append(layer)
        else:
            known = ", ".join(kind.__name__ for kind in (*OF_PART, *BY_POSITION))
            raise ValueError(
                f"layer '{layer.name}', a {type(layer).__name__}, mixes positions of a sequence or "
                f"is not known: context parallelism takes {known}"
            )
    return found


class ContextReplica(LayeredReplica):
    """This rank's part of sequences, with the whole model of numpy layers. Making it is collective.

    Args:
        whole: The model of one rank, the same on every rank, such as a TransformerReplica. Inputs
            are tokens (s, t) or numbers (s, t, ...), targets have positions on axis 1, too.
        grid: The ranks; those of `grid.context` share each sequence.

    Attributes:
        sequences: This rank's part of them; it counts the bytes sent.

    Raises:
        ValueError: If a layer can't compute a part of a sequence; when it is used, if sequences
            can't be divided evenly.
    """

    def __init__(self, whole: LayeredReplica, grid: Grid) -> None:
        every = flat_layers(whole.layers)
        causal = any(isinstance(one, Attention) and one.causal for one in every)
        self.grid, self.sequences = grid, Sequences(grid.context, causal)
        layers = layers_of_part(whole.layers, self.sequences)
        super().__init__(layers, whole.loss, dtype=whole.dtype)
        self.parameters[:] = whole.parameters
        self.traits = replace(self.traits, tries_out=True)
        self.holding = grid.holding(self.segments, self.parameters.size)
        if whole.random is not None:
            self.random = grid.context.broadcast(whole.random.copy())
        # The most positions, and what an input needs at least: samples, positions, numbers
        self._most = [one.positions for one in every if isinstance(one, Embedding)]
        self._axes = 2 if self._most else 3

    def part(self, batch: Batch) -> Batch:
        """This rank's part of a batch (x, y), which ranks of `grid.context` call with the same."""
        x, y = plain(batch)
        x, y = self.part_of_inputs(x), np.asarray(y)
        if y.shape[1:2] != (self.sequences.positions.length,):
            raise ValueError(
                f"targets of shape {y.shape}: context parallelism takes one per position, "
                f"(samples, {self.sequences.positions.length}, ...)"
            )
        return x, self.sequences.take(y)

    def part_of_inputs(self, x: Any) -> np.ndarray:
        """As `part`, of inputs alone; sequences have their length from now on."""
        x = np.asarray(x)
        if x.ndim < self._axes or (self._most and x.shape[1] > self._most[0]):
            most = f", at most {self._most[0]} positions" if self._most else ""
            names = "(samples, positions)" if self._most else "(samples, positions, ...)"
            raise ValueError(f"inputs of shape {x.shape}: expected {names}{most}")
        self.sequences.begin(x.shape[1])
        return self.sequences.take(x)

    def try_out(self, batch: Batch, shared: bool, by_team: bool = True) -> None:
        self.part(batch)

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """The mean loss over this rank's positions, and its gradient. Collective over the ring."""
        batch, seeds = self.part(batch), self.random
        try:
            return super().compute_gradient(batch)
        except BaseException:
            self.random = seeds  # a step that failed is made again alike
            raise

    def measure(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """As `Replica.measure`, over all positions, on all ranks that share the sequences."""
        sums, ranks = super().measure(map(self.part, batches)), self.grid.context.size
        found = {n: of / (1 if n == "samples" else ranks) for n, of in sums.items()}
        return self.sequences.summed(found)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The outputs at all positions, on all ranks that share the sequences. Collective."""
        return self.sequences.gather(super().predict(self.part_of_inputs(x)))
