"""A small GPT in numpy: a transformer that predicts the next token at every position.

    x     = embedding of tokens and of positions                     (s, t, width)
    x     = x + attention(norm(x));  x = x + mlp(norm(x))            once per block
    y     = norm(x) W + b                                            (s, t, tokens): logits

Attention is causal: a position sees itself and those before it. Vaswani et al., "Attention Is All
You Need", arXiv 1706.03762; norms come first, as in GPT-2 (Radford et al., 2019). `models.gpt` is
the same network in Keras, with the same names of weights.
"""

from typing import Any

import numpy as np

from tutorial_dl.replica.layered import LayeredReplica
from tutorial_dl.replica.layers import (
    Activation,
    Chain,
    Dense,
    Dropout,
    Layer,
    LayerNorm,
    glorot,
    rows,
)


class Embedding(Layer):
    """Tokens x (s, t) of integers to y (s, t, width): a row per token plus a row per position.

    There is no gradient of tokens: B returns None.
    """

    def __init__(self, tokens: int, positions: int, width: int) -> None:
        super().__init__("embedding")
        self.tokens, self.positions, self.width = tokens, positions, width

    def arrays(self):
        return [
            ("tokens/embeddings", (self.tokens, self.width)),
            ("positions/embeddings", (self.positions, self.width)),
        ]

    def start(self, w, random):
        for array in w:
            array[...] = random.uniform(-0.05, 0.05, array.shape)

    def checked(self, x) -> np.ndarray:
        """Tokens (s, t) as an array; ValueError if this layer has no rows for them."""
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] > self.positions or x.dtype.kind not in "iu":
            raise ValueError(
                f"inputs of shape {x.shape} and dtype {x.dtype}: expected integers (samples, t), "
                f"t at most {self.positions}"
            )
        if x.size and not (x.min() >= 0 and x.max() < self.tokens):
            raise ValueError(f"tokens {x.min()} to {x.max()}: expected 0 to {self.tokens - 1}")
        return x

    def forward(self, x, w, at):
        x = self.checked(x)
        return w[0][x] + w[1][: x.shape[1]], x

    def backward_inputs(self, w, saved, gy):
        return None, gy

    def backward_weights(self, saved, kept, gw):
        np.add.at(gw[0], saved, kept)
        gw[1][: saved.shape[1]] += kept.sum(axis=0)


class Attention(Layer):
    """Attention of `heads` heads over the positions of x (s, t, width); y has the same shape.

    In each head, with q, k, v (s, t, n) linear in x, and c of all heads mapped to the output:

        a = softmax(q k^T / sqrt(n))   (s, t, t), 0 for later positions if `causal`
        c = a v                        (s, t, n)
    """

    def __init__(self, name: str, width: int, heads: int, causal: bool = True) -> None:
        super().__init__(name)
        if width % heads:
            raise ValueError(f"width {width} must be a multiple of the {heads} heads")
        self.width, self.heads, self.causal = width, heads, causal
        self.size = width // heads  # of a head

    def arrays(self):
        d, h, n = self.width, self.heads, self.size
        found = []
        for part in ("query", "key", "value"):
            found += [
                (f"{self.name}/{part}/kernel", (d, h, n)),
                (f"{self.name}/{part}/bias", (h, n)),
            ]
        out = f"{self.name}/attention_output"
        return [*found, (f"{out}/kernel", (h, n, d)), (f"{out}/bias", (d,))]

    def start(self, w, random):
        for kernel in w[::2]:
            glorot(kernel, random, self.width, self.width)

    def _split(self, x):
        """(s, t, width) as (s, heads, t, n)."""
        s, t, _ = x.shape
        return x.reshape(s, t, self.heads, -1).transpose(0, 2, 1, 3)

    @staticmethod
    def _join(x):
        s, h, t, n = x.shape
        return x.transpose(0, 2, 1, 3).reshape(s, t, h * n)

    def forward(self, x, w, at):
        d, t = self.width, x.shape[1]
        q, k, v = (self._split(x @ w[i].reshape(d, -1) + w[i + 1].reshape(-1)) for i in (0, 2, 4))
        scores = q @ k.swapaxes(-1, -2)  # (s, heads, t, t)
        scores *= x.dtype.type(1 / np.sqrt(self.size))
        if self.causal:
            scores[..., ~np.tri(t, dtype=bool)] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        a = np.exp(scores, out=scores)
        a /= a.sum(axis=-1, keepdims=True)
        c = self._join(a @ v)  # (s, t, width)
        return c @ w[6].reshape(-1, d) + w[7], (x, q, k, v, a, c)

    def backward_inputs(self, w, saved, gy):
        d = self.width
        _, q, k, v, a, _ = saved
        gc = self._split(gy @ w[6].reshape(-1, d).T)
        gv = a.swapaxes(-1, -2) @ gc
        ga = gc @ v.swapaxes(-1, -2)
        gs = a * (ga - (ga * a).sum(axis=-1, keepdims=True))
        gs *= gs.dtype.type(1 / np.sqrt(self.size))
        parts = [self._join(g) for g in (gs @ k, gs.swapaxes(-1, -2) @ q, gv)]
        gx = sum(g @ w[i].reshape(d, -1).T for i, g in zip((0, 2, 4), parts, strict=True))
        return gx, (*parts, gy)

    def backward_weights(self, saved, kept, gw):
        x, c = saved[0], saved[5]
        for i, (inputs, g) in enumerate(zip((x, x, x, c), kept, strict=True)):
            gw[2 * i] += (rows(inputs).T @ rows(g)).reshape(gw[2 * i].shape)
            gw[2 * i + 1] += rows(g).sum(axis=0).reshape(gw[2 * i + 1].shape)


def transformer_layers(
    tokens: int, positions: int, width: int, heads: int, blocks: int, dropout: float = 0.0
) -> list[Layer]:
    """The layers of the network above; a block is two of them, attention and MLP."""
    layers: list[Layer] = [Embedding(tokens, positions, width)]
    for b in range(1, blocks + 1):
        name = f"block_{b}"
        attention = [
            LayerNorm(f"{name}_norm_1", width),
            Attention(f"{name}_attention", width, heads),
        ]
        mlp = [
            LayerNorm(f"{name}_norm_2", width),
            Dense(f"{name}_dense_1", width, 4 * width),
            Activation(f"{name}_gelu", "gelu"),
            Dense(f"{name}_dense_2", 4 * width, width),
        ]
        for i, part in enumerate((attention, mlp)):
            if dropout:
                part.append(Dropout(f"{name}_dropout_{i + 1}", dropout, number=2 * b + i))
        layers.append(Chain(f"{name}_attend", attention, residual=True))
        layers.append(Chain(f"{name}_mlp", mlp, residual=True))
    return [*layers, LayerNorm("norm", width), Dense("output", width, tokens)]


class TransformerReplica(LayeredReplica):
    """The Replica of a small GPT. A batch is (x, y): tokens (s, t), and those that follow (s, t).

    Args:
        tokens: Size of the vocabulary.
        positions: The longest sequence.
        width, heads, blocks: Numbers per position, per block, and of blocks.
        dropout: Share of the numbers that is dropped behind attention and MLP while training.
        seed: Seed of the initial weights and of the masks.
        dtype: float32 or float64.
    """

    def __init__(
        self,
        tokens: int = 97,
        positions: int = 64,
        width: int = 64,
        heads: int = 4,
        blocks: int = 2,
        dropout: float = 0.0,
        seed: int = 0,
        dtype: Any = np.float32,
    ) -> None:
        layers = transformer_layers(tokens, positions, width, heads, blocks, dropout)
        self.positions = positions
        super().__init__(layers, "cross_entropy", seed, dtype)
