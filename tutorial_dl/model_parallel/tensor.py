"""Tensor parallelism: each layer over several ranks, which compute every batch together.

Two matrices, one after the other, on T ranks. The first is split by columns, so each rank computes
some of the outputs, from all inputs; the second by rows, so it uses just these, and each rank has a
term of the sum:

    h_r = gelu(x A_r)            A = [A_0 A_1 ...]     by columns
    y   = sum_r h_r B_r          B = [B_0; B_1; ...]   by rows

Only the sum needs the others. Two layers without weights mark the pair: f (`Enter`) before it and g
(`Leave`) behind it, which also adds the bias.

                  forward                      backward
    f             nothing                      allreduce: dx = sum_r dh_r A_r^T
    g             allreduce: y = sum_r y_r     nothing

Attention is such a pair by itself: the maps to queries, keys and values are split by heads, the map
of the heads to the output by rows. So is a pair of convolutions, by channels. An embedding is split
by rows (of its table): a rank has 0 for tokens that it does not hold, and g adds up.

Sequence parallel: what lies between pairs, norms and dropout, would be computed on all ranks alike.
With `sequence`, each rank does it for its part of the sequence; f becomes an allgather, with a
reduce-scatter backward, and g a reduce-scatter, with an allgather backward. An allreduce consists
of these two, so the bytes are the same. What a rank holds from the forward to the backward pass is
less. Numbers per position of a block of width d with h heads, a sequence of t positions and dropout
(norms, masks, inputs of a pair, and what lies within pairs):

    tensor parallel                    2 (d + 1) + 2 d + 2 d       + (16 d + h t) / T
    with `sequence`                    (2 (d + 1) + 2 d) / T + 2 d + (16 d + h t) / T
    and without `keep`, as in the paper     (2 (d + 1) + 2 d + 2 d + 16 d + h t) / T

Shoeybi et al. (Megatron-LM), arXiv 1909.08053; sequence parallel: Korthikanti et al., arXiv
2205.05198. The 2 d are what f has gathered; without `keep`, it is gathered again in the backward
pass, which sends a quarter more.

This file is for layers in numpy; keras_tensor.py cuts Keras models in the same way, and so does
keras_tensor_sequence.py with `sequence`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

import numpy as np

from numba_kernels.optimizers.base import Optimizer, check_range
from numba_kernels.optimizers.clipping import clip_factor, squared_length
from numba_kernels.team.collectives import Collectives
from tutorial_dl.model_parallel.reductions import Reductions
from tutorial_dl.model_parallel.tensor_layers import (
    Divide,
    Enter,
    EnterAgain,
    Join,
    Leave,
    PartOfDropout,
    TokenRows,
    WithoutBias,
)
from tutorial_dl.replica.base import Batch
from tutorial_dl.replica.layered import LayeredReplica, flat_layers
from tutorial_dl.replica.layers import Activation, Chain, Conv2D, Dense, Dropout, Layer, LayerNorm
from tutorial_dl.replica.transformer import Attention, Embedding

KINDS = ("columns", "rows", "heads", "replicate")
CUTS = {  # class, kind: the axis along which each of its arrays is cut; None: whole on all ranks
    (Dense, "columns"): (1, 0),
    (Dense, "rows"): (0, None),
    (Conv2D, "columns"): (3, 0),
    (Conv2D, "rows"): (2, None),
    (Attention, "heads"): (1, 0, 1, 0, 1, 0, 0, None),
    (Embedding, "rows"): (0, None),
}


def kind_of(layer: Layer, rules: Mapping[str, str]) -> str:
    """The kind that the first matching rule gives a layer; "replicate" if none does."""
    return next((k for pattern, k in rules.items() if fnmatchcase(layer.name, pattern)), KINDS[-1])


def local(layer: Layer, kind: str, team: Collectives) -> Layer:
    """What this rank has of a layer; ValueError with its name if it can't be cut so."""
    able = [k for of, k in CUTS if type(layer) is of]
    if kind not in able:
        ways = " or ".join([*able, "replicate"])
        raise ValueError(f"layer '{layer.name}', a {type(layer).__name__}: {ways}, not {kind}")
    counts = {
        Dense: lambda: (layer.outputs if kind == "columns" else layer.inputs, "units"),
        Conv2D: lambda: (layer.filters if kind == "columns" else layer.channels, "channels"),
        Attention: lambda: (layer.heads, "heads"),
        Embedding: lambda: (layer.tokens, "tokens"),
    }
    count, what = counts[type(layer)]()
    if count % team.size:
        ranks = [str(n) for n in range(1, count + 1) if count % n == 0]
        raise ValueError(
            f"layer '{layer.name}' has {count} {what}, which can't be divided evenly over "
            f"{team.size} ranks: {', '.join(ranks[:6])} ranks can, or replicate it"
        )
    share = count // team.size
    if isinstance(layer, Dense | Conv2D):
        sizes = (layer.inputs, layer.outputs) if isinstance(layer, Dense) else (
            layer.channels, layer.filters
        )  # fmt: skip
        sizes = (sizes[0], share) if kind == "columns" else (share, sizes[1])
        return type(layer)(layer.name, *sizes)
    if isinstance(layer, Attention):
        one = Attention(layer.name, layer.width, layer.heads, layer.causal)
        one.heads = share
        return one
    return TokenRows(layer, team)


def split(
    layers: Sequence[Layer],
    team: Collectives | Reductions,
    rules: Mapping[str, str],
    sequence: bool = False,
    keep: bool = True,
) -> list[Layer]:
    """The layers of this rank, from those of the whole model; ValueError if they can't be cut.

    Args:
        layers: The whole model's, of tutorial_dl/replica/layers.py and transformer.py.
        team: The ranks that compute together, T; or their Reductions, which count bytes.
        rules: Pattern of layers' names (as of files, "block_*_dense_1") -> how they are cut:
            "columns", "rows", "heads" or "replicate" (not at all, as layers without a rule). The
            first that matches counts. A layer by columns needs one by rows behind it; only
            activations may lie between them.
        sequence: Divide what lies between the pairs along the sequence, axis 1.
        keep: With `sequence`, whether ranks keep the whole inputs of pairs until the backward pass;
            otherwise they gather them again.
    """
    team = team if isinstance(team, Reductions) else Reductions(team)
    if not (keep or sequence):
        raise ValueError("keep=False has no effect without sequence=True")
    for pattern, kind in rules.items():
        if kind not in KINDS:
            raise ValueError(f"rule '{pattern}': {', '.join(KINDS)}, not {kind!r}")
        if not any(fnmatchcase(layer.name, pattern) for layer in flat_layers(layers)):
            names = ", ".join(one.name for one in flat_layers(layers) if one.arrays())
            raise ValueError(f"rule '{pattern}' matches no layer: the model has {names}")
    every = [one for layer in layers for one in flat_layers([layer])]
    cut = [
        i
        for i, one in enumerate(layers)
        for each in flat_layers([one])
        if kind_of(each, rules) != "replicate" and not isinstance(each, Embedding)
    ]
    if sequence and not cut:
        raise ValueError("sequence=True needs a pair of layers that is cut")
    names = [one.name for one in every]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"layer '{twice}' occurs twice; layers that share weights can't be cut")
    found: list[Layer] = []
    before = False

    def sort(i: int) -> tuple[bool, bool]:
        return sequence and cut[0] <= i <= cut[-1], isinstance(layers[i], Chain)

    for (inside, chained), numbers in groupby(range(len(layers)), sort):
        run = [layers[i] for i in numbers]
        if inside != before:
            found.append(Divide(team) if inside else Join(team))
        before = inside
        if chained:
            for layer in run:
                found.append(Chain(layer.name, _split(layer.layers, team, rules, inside, keep)))
                found[-1].residual = layer.residual
        else:
            found += _split(run, team, rules, inside, keep) if sequence else run
    if before:
        found.append(Join(team))
    # Without chains, a pair may lie among the model's layers themselves.
    return found if sequence else _split(found, team, rules, False, keep)


def entered(layer, own, team, sequence, keep) -> list[Layer]:
    """f, and what this rank has of the layer behind it."""
    if sequence and not keep:
        return [EnterAgain(own, team)]
    return [Enter(f"f of {layer.name}", team, sequence), own]


def _split(layers, team, rules, sequence, keep) -> list[Layer]:
    found, first = [], None  # the layer by columns whose partner has not come yet
    for layer in layers:
        kind = "replicate" if isinstance(layer, Chain | WithoutBias) else kind_of(layer, rules)
        if first and not (kind == "rows" or isinstance(layer, Activation)):
            raise ValueError(
                f"layer '{layer.name}' lies behind '{first}', which is cut by columns: only "
                "activations may, up to a layer that is cut by rows"
            )
        if kind == "columns":
            found += entered(layer, local(layer, kind, team), team, sequence, keep)
            first = layer.name
        elif kind in ("rows", "heads"):
            own, embedding = local(layer, kind, team), isinstance(layer, Embedding)
            if kind == "rows" and not first and not embedding:
                raise ValueError(
                    f"layer '{layer.name}' is cut by rows: it needs a layer that is cut by columns "
                    "before it"
                )
            if embedding:
                found += [own, Leave(f"g of {layer.name}", team, sequence)]
            else:
                bias, (size,) = layer.arrays()[-1]
                own = WithoutBias(own)
                heads = kind == "heads"
                found += entered(layer, own, team, sequence, keep) if heads else [own]
                found.append(Leave(f"g of {layer.name}", team, sequence, bias, size))
            first = None
        elif sequence and isinstance(layer, Dropout):
            found.append(PartOfDropout(layer, team))
        else:
            if sequence and not isinstance(layer, Activation | LayerNorm | Dense):
                kinds = type(layer).__name__
                raise ValueError(
                    f"layer '{layer.name}', a {kinds}, can't compute a part of the sequence"
                )
            found.append(layer)
    if first:
        raise ValueError(f"layer '{first}' is cut by columns: it needs one by rows behind it")
    return found


class TensorReplica(LayeredReplica):
    """This rank's part of a model of numpy layers, as a Replica.

    All ranks of the team compute the same batch. Each has its own slices in `parameters`; what is
    not cut is equal on all of them, and stays so. Optimizers that treat each number by itself then
    make the same updates as on one process; see `check_optimizer` and `clip`.

    Args: those of `split`, and of LayeredReplica. The initial weights are those of the whole model.

    Attributes:
        reductions: Counts the bytes that this rank sends while it computes, `reductions.sent`.
    """

    def __init__(
        self, layers: Sequence[Layer], team: Collectives, rules: Mapping[str, str],
        sequence: bool = False, loss: str = "cross_entropy", seed: int = 0,
        dtype: Any = np.float32, keep: bool = True,
    ) -> None:  # fmt: skip
        self.team, self.sequence, self.reductions = team, sequence, Reductions(team)
        parts = split(layers, self.reductions, rules, sequence, keep)
        super().__init__(parts, loss, seed, dtype)
        self.axes: dict[str, int | None] = {}  # of each array: where it is cut
        for layer in flat_layers(layers):
            axes = CUTS.get((type(layer), kind_of(layer, rules)), (None,) * len(layer.arrays()))
            self.axes |= {name: axis for (name, _), axis in zip(layer.arrays(), axes, strict=True)}
        whole = LayeredReplica(layers, loss, seed, dtype)
        self._order = [one.name for one in whole.segments]
        self.load({one.name: one.of(whole.parameters) for one in whole.segments})
        # In the sequence form, these have seen a part of the sequence on each rank: add them up.
        partial: list[str] = []
        inside = False
        for layer in flat_layers(parts):
            inside = (inside or isinstance(layer, Divide)) and not isinstance(layer, Join)
            names = [name for name, _ in layer.arrays() if self.axes[name] is None]
            partial += names if inside else []
        self.partial = [one for one in self.segments if one.name in partial]

    def load(self, whole: Mapping[str, np.ndarray]) -> None:
        """Take this rank's slices of the whole model's arrays, by name."""
        for one in self.segments:
            array, axis = whole[one.name], self.axes[one.name]
            if axis is not None:
                array = np.split(array, self.team.size, axis)[self.team.rank]
            one.of(self.parameters)[...] = array

    def whole(self, vector: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The whole model's arrays by name, on all ranks, in its own order. Collective.

        `vector`: (n,) as `parameters` (the default), such as the gradient.
        """
        vector, found = self.parameters if vector is None else vector, {}
        for one in self.segments:
            array, axis = np.ascontiguousarray(one.of(vector)), self.axes[one.name]
            if axis is not None:
                every = self.team.allgather(array).reshape(self.team.size, *array.shape)
                array = np.concatenate(list(every), axis)
            found[one.name] = array.copy()
        return {name: found[name] for name in self._order}

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        loss, samples = super().compute_gradient(batch)
        if samples:
            self.reductions.complete(self.gradient, self.partial)
        return loss, samples

    def clip(self, clip_norm: float) -> float:
        """Clip the gradient by the norm of the whole model's; return that norm. Collective."""
        check_range("clip_norm", clip_norm)
        sums = np.zeros(2)  # of what is cut, and of what all ranks have alike
        for one in self.segments:
            flat = one.of(self.gradient).reshape(-1)
            sums[int(self.axes[one.name] is None)] += squared_length(flat)
        norm = float(np.sqrt(self.team.allreduce(sums[:1])[0] + sums[1]))
        factor = clip_factor(norm, clip_norm)
        if factor != 1:
            self.gradient *= self.dtype.type(factor)
        return norm

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise ValueError for a rule that needs norms of whole layers."""
        if optimizer.layered:
            raise ValueError(
                f"{optimizer.in_words} needs norms of whole layers, of which each rank has a part: "
                "use a rule such as sgd or adam"
            )
