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
of the heads to the output by rows. So is a pair of convolutions, by channels.

Shoeybi et al. (Megatron-LM), arXiv 1909.08053. This is the lesson, for layers in numpy;
keras_tensor.py cuts Keras models in the same way, and trains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from numba_kernels.spans import SUMS, span
from numba_kernels.team.team import Team
from tutorial_dl.replica.holding import Holding, Part
from tutorial_dl.replica.layered import LayeredReplica, flat_layers
from tutorial_dl.replica.layers import Activation, Chain, Conv2D, Dense, Layer
from tutorial_dl.replica.transformer import Attention

KINDS = ("columns", "rows", "heads", "replicate")
CUTS = {  # class, kind: the axis along which each of its arrays is cut; None: whole on all ranks
    (Dense, "columns"): (1, 0),
    (Dense, "rows"): (0, None),
    (Conv2D, "columns"): (3, 0),
    (Conv2D, "rows"): (2, None),
    (Attention, "heads"): (1, 0, 1, 0, 1, 0, 0, None),
}


class Enter(Layer):
    """f: the same x on all ranks; backward, the sum of what each rank's part makes of it."""

    def __init__(self, name: str, team: Team) -> None:
        super().__init__(name)
        self.team = team

    def forward(self, x, w, at):
        return x, None

    def backward_inputs(self, w, saved, gy):
        with span(SUMS[1]):
            return self.team.allreduce(np.ascontiguousarray(gy)), None


class Leave(Layer):
    """g: the sum of all ranks' terms, plus a bias of `size` numbers."""

    def __init__(self, name: str, team: Team, bias: str, size: int) -> None:
        super().__init__(name)
        self.team, self.bias, self.size = team, bias, size

    def arrays(self):
        return [(self.bias, (self.size,))]

    def forward(self, x, w, at):
        with span(SUMS[0]):
            y = self.team.allreduce(np.ascontiguousarray(x))
        return y + w[0], None

    def backward_inputs(self, w, saved, gy):
        return gy, gy

    def backward_weights(self, saved, kept, gw):
        gw[0] += kept.reshape(-1, self.size).sum(axis=0)


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


def kind_of(name: str, rules: Mapping[str, str]) -> str:
    """The kind that the first matching rule gives a layer; "replicate" if none does."""
    return next((kind for pattern, kind in rules.items() if fnmatchcase(name, pattern)), KINDS[-1])


def check_rules(rules: Mapping[str, str], names: Sequence[str], cuttable: Sequence[str]) -> None:
    """Raise ValueError for a rule of no kind, or one that fits none of these layers' names."""
    for pattern, kind in rules.items():
        if kind not in KINDS:
            raise ValueError(f"rule '{pattern}': {', '.join(KINDS)}, not {kind!r}")
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"rule '{pattern}' matches no layer: the model has {', '.join(cuttable)}"
            )


def check_kind(layer: Any, kind: str, able: Sequence[str]) -> None:
    """Raise ValueError with the layer's name if it can't be cut so."""
    if kind not in able:
        ways = " or ".join([*able, "replicate"])
        raise ValueError(f"layer '{layer.name}', a {type(layer).__name__}: {ways}, not {kind}")


def share(layer: Any, count: int, what: str, ranks: int) -> int:
    """Of `count` units or heads, those of each rank; ValueError with the layer's name."""
    if count % ranks:
        able = [str(n) for n in range(1, count + 1) if count % n == 0]
        raise ValueError(
            f"layer '{layer.name}' has {count} {what}, which can't be divided evenly over {ranks} "
            f"ranks: {', '.join(able[:8])} ranks can, or replicate it"
        )
    return count // ranks


def local(layer: Layer, kind: str, team: Team) -> Layer:
    """What this rank has of a layer; ValueError with its name if it can't be cut so."""
    check_kind(layer, kind, [k for of, k in CUTS if type(layer) is of])
    count = layer.arrays()[0][1][CUTS[type(layer), kind][0]]
    mine = share(layer, count, "heads" if kind == "heads" else "units", team.size)
    if isinstance(layer, Attention):
        one = Attention(layer.name, layer.width, layer.heads, layer.causal)
        one.heads = mine
        return one
    sizes = (layer.inputs, layer.outputs) if isinstance(layer, Dense) else (
        layer.channels, layer.filters
    )  # fmt: skip
    return type(layer)(layer.name, *((sizes[0], mine) if kind == "columns" else (mine, sizes[1])))


def split(layers: Sequence[Layer], team: Team, rules: Mapping[str, str]) -> list[Layer]:
    """The layers of this rank, from those of the whole model; ValueError if they can't be cut.

    Args:
        layers: The whole model's, of tutorial_dl/replica/layers.py and transformer.py.
        team: The ranks that compute together, T.
        rules: Pattern of layers' names (as of files, "block_*_dense_1") -> how they are cut:
            "columns", "rows", "heads" or "replicate" (not at all, as layers without a rule). The
            first that matches counts. A layer by columns needs one by rows behind it; only
            activations may lie between them.
    """
    every = [one.name for one in flat_layers(layers)]
    check_rules(rules, every, [one.name for one in flat_layers(layers) if one.arrays()])
    if len(set(every)) < len(every):
        twice = next(name for name in every if every.count(name) > 1)
        raise ValueError(f"layer '{twice}' occurs twice; layers that share weights can't be cut")
    return _split(layers, team, rules)


def _split(layers: Sequence[Layer], team: Team, rules: Mapping[str, str]) -> list[Layer]:
    found, first = [], None  # the layer by columns whose partner has not come yet
    for layer in layers:
        kind = "replicate" if isinstance(layer, Chain) else kind_of(layer.name, rules)
        if first and not (kind == "rows" or isinstance(layer, Activation)):
            raise ValueError(
                f"layer '{layer.name}' lies behind '{first}', which is cut by columns: only "
                "activations may, up to a layer that is cut by rows"
            )
        if isinstance(layer, Chain):
            inner = _split(layer.layers, team, rules)
            found.append(Chain(layer.name, inner, layer.residual))
        elif kind == "replicate":
            found.append(layer)
        else:
            own = local(layer, kind, team)
            if kind == "rows" and not first:
                raise ValueError(
                    f"layer '{layer.name}' is cut by rows: it needs a layer that is cut by columns "
                    "before it"
                )
            if kind != "rows":
                found.append(Enter(f"f of {layer.name}", team))
            first = layer.name if kind == "columns" else None
            bias, (size,) = layer.arrays()[-1]
            leave = Leave(f"g of {layer.name}", team, bias, size)
            found += [own] if first else [WithoutBias(own), leave]
    if first:
        raise ValueError(f"layer '{first}' is cut by columns: it needs one by rows behind it")
    return found


class TensorReplica(LayeredReplica):
    """This rank's part of a model of numpy layers, as a Replica.

    All ranks of the team compute the same batch. Each has its own slices in `parameters`; what is
    not cut is equal on all of them, and stays so. Its `holding` says what lies where, so strategy
    "synchronous" trains it, and clips by the norm of the whole model.

    Args: those of `split`, and of LayeredReplica. The initial weights are those of the whole model.

    Attributes:
        axes: By name of each array: where it is cut, or None.
    """

    def __init__(
        self, layers: Sequence[Layer], team: Team, rules: Mapping[str, str],
        loss: str = "cross_entropy", seed: int = 0, dtype: Any = np.float32, **gone: Any,
    ) -> None:  # fmt: skip
        if gone or isinstance(loss, bool):  # `sequence` was the fourth
            raise TypeError(
                f"TensorReplica takes no {', '.join(gone) or 'sequence'}: leave it out, or train a "
                "Keras model by KerasTensorReplica(model, grid, rules, sequence=True)"
            )
        super().__init__(split(layers, team, rules), loss, seed, dtype)
        self.axes: dict[str, int | None] = {}
        for layer in flat_layers(layers):
            names = [name for name, _ in layer.arrays()]
            axes = CUTS.get((type(layer), kind_of(layer.name, rules)), (None,) * len(names))
            self.axes |= dict(zip(names, axes, strict=True))
        whole = LayeredReplica(layers, loss, seed, dtype)
        there, mine = {one.name: one for one in whole.segments}, []
        for one in self.segments:
            index, axis = [slice(None)] * len(one.shape), self.axes[one.name]
            if axis is not None:
                index[axis] = slice(*(one.shape[axis] * r for r in (team.rank, team.rank + 1)))
            mine.append(Part(one, there[one.name], tuple(index), axis is None))
        alone, size = team.split(team.rank), whole.parameters.size
        words = f"tensor groups of {team.size}, 1 copy"
        self.holding = Holding(
            whole.segments, size, tuple(mine), team, alone, alone, team, team, (team,), words=words
        )
        self.holding.take(lambda first, last: whole.parameters[first:last], self.parameters)

    def whole(self, vector: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The whole model's arrays by name, on all ranks, in its own order. Collective.

        `vector`: (n,) as `parameters` (the default), such as the gradient.
        """
        vector = self.parameters if vector is None else vector
        found = self.holding.joined(vector, 0, self.holding.size)
        return {one.name: one.view(found) for one in self.holding.whole}
