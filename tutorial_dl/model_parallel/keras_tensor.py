"""`Cut`: from a Keras model to the model of one rank, cut by columns, rows and heads.

Keras's `clone_model` calls the layers of the model once more (keras_graph.py); where a layer is
cut, a smaller one is called. Each tensor is whole, that is the same on all ranks, or split: each
rank has a slice of its last axis. A layer by columns makes a split tensor of a whole one, a layer
by rows a whole one of a split one. In between, only what computes slice by slice may lie.

    whole -> f -> columns -> split -> gelu -> split -> rows -> g -> whole

In the sequence-parallel form (keras_sequence.py) there is a third one, a part of each sequence:

    x -> divide -> norm, sum, dropout -> f -> attention, a pair -> g -> part

f, g and `divide` are Exchanges (keras_layers.py). Layers that are not cut are the model's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from numba_kernels.team.collectives import Collectives
from tutorial_dl.model_parallel import keras_context_rules, keras_rules
from tutorial_dl.model_parallel.keras_checks import check_model
from tutorial_dl.model_parallel.keras_graph import Call, Graph, filled, tensors_of
from tutorial_dl.model_parallel.keras_layers import Exchange, Heads, Leave, PartOfDropout, Rows
from tutorial_dl.model_parallel.keras_sequence import SequencePlan, is_dropout
from tutorial_dl.model_parallel.keras_sums import Sums
from tutorial_dl.model_parallel.tensor import kind_of
from tutorial_dl.replica.base import Segment
from tutorial_dl.replica.holding import ALL, Part
from tutorial_dl.replica.keras.graphs import keras

# Initializers of the slices, whose weights are then copied; a user's own could not be made again
FRESH = {"kernel_initializer": "zeros", "bias_initializer": "zeros"}


class Cut:
    """The model of this rank.

    Args:
        model: The whole model, the same on every rank, functional or sequential; it is built.
        team: The ranks that compute each batch together, T.
        rules: Pattern of layers' names -> "columns", "rows", "heads" or "replicate". The first that
            matches counts; layers without a rule are whole on all ranks. None:
            `keras_rules.rules_for`.
        sequence: Whether ranks have parts of sequences between the layers that are cut. If they do
            not divide the positions, parts differ by one.

    Attributes:
        local: The model of this rank, compiled as `model` is. It shares with it the layers that are
            not cut.
        rules: The table by which it is cut.
        sums: Counts what ranks send.

    Raises:
        ValueError: If the model can't be cut so, with the layer's name.
    """

    def __init__(
        self, model: Any, team: Collectives, rules: Mapping[str, str] | None = None,
        sequence: bool = False,
    ) -> None:  # fmt: skip
        check_model(model, "tensor parallelism", mixed=True)
        self.model, self.team, self.sums = model, team, Sums(team)
        self.graph = Graph(model)
        calls = self.graph.calls
        self.rules = keras_rules.rules_for(self.graph) if rules is None else dict(rules)
        named = {c.operation.name for c in calls if getattr(c.operation, "weights", None)}
        keras_rules.check_rules(model, self.rules, named)
        self._number = {id(v): i for i, v in enumerate(model.trainable_weights)}
        self._split: dict[int, str] = {}  # tensors of this rank that are split: by which layer
        self._parts: dict[int, int] = {}  # ... and of which ranks have parts: all positions
        self._other: dict[tuple[int, str], Any] = {}  # tensors in another form
        self._kept: list[Any] = []  # so that no tensor gets the id of another
        self._cut: set[str] = set()  # names of layers
        self._made: dict[int, tuple[int, tuple, bool]] = {}  # local weight -> whole, index, alike
        self._partial: set[int] = set()  # local weights whose gradients ranks must add up
        self.plan = SequencePlan(self) if sequence else None
        self.local = compiled_as(model, self.graph.rebuilt(self._call, self._end))
        self._check_once()

    def _check_once(self) -> None:
        for number, times in Counter(one[0] for one in map(self._place, self.weights)).items():
            if times > 1:
                raise ValueError(
                    f"weights '{self.model.trainable_weights[number].path}' are used by a layer "
                    "that is cut and by another one: use the rule 'replicate' for the first"
                )

    @property
    def weights(self) -> list[Any]:
        return self.local.trainable_weights

    def _place(self, variable: Any) -> tuple[int, tuple, bool]:
        """The number of the whole model's array, what of it lies here, and whether on all ranks."""
        return self._made.get(id(variable)) or (self._number[id(variable)], ALL, True)

    def parts(self, here: Sequence[Segment], there: Sequence[Segment]) -> list[Part]:
        """Where the weights of `local`, with these segments, lie in the whole model's."""
        places = zip(here, map(self._place, self.weights), strict=True)
        return [Part(one, there[number], index, alike) for one, (number, index, alike) in places]

    def partial(self, here: Sequence[Segment]) -> list[Segment]:
        """The segments of which each rank has a term of the gradient, which they must add up."""
        return [s for s, v in zip(here, self.weights, strict=True) if id(v) in self._partial]

    def kind(self, call: Call) -> str:
        """How the layer of a call is cut."""
        layer = call.operation
        if isinstance(layer, keras.Layer) and layer.weights:
            return kind_of(layer.name, self.rules)
        return "replicate"

    # Forms of tensors

    def _exchanged(self, user: Any, t: Any, suffix: str, forward: str, backward: str) -> Any:
        """A tensor in another form; each is computed once, and named by the first who uses it."""
        if (id(t), suffix) not in self._other:
            # It casts nothing
            how = {"dtype": t.dtype} if keras.backend.is_float_dtype(t.dtype) else {}
            length = 0 if forward == "same" else self._parts.get(id(t), t.shape[1])
            name = self.graph.name_for(user, suffix)
            exchange = Exchange(name, self.sums, forward, backward, length, **how)
            self._other[id(t), suffix] = exchange(t)
        return self._other[id(t), suffix]

    def _whole(self, user: Any, t: Any) -> Any:
        return self._exchanged(user, t, "join", "gather", "take") if id(t) in self._parts else t

    def _part(self, user: Any, t: Any) -> Any:
        return t if id(t) in self._parts else self._exchanged(user, t, "divide", "take", "gather")

    def _entering(self, layer: Any, t: Any) -> Any:
        """What a layer that is cut takes of a tensor."""
        if not keras.backend.is_float_dtype(t.dtype):
            return self._whole(layer, t)
        if id(t) in self._parts and not isinstance(layer, keras_rules.CONVOLUTIONS):
            return self._exchanged(layer, t, "enter_from_part", "gather", "sum_part")
        return self._exchanged(layer, self._whole(layer, t), "enter", "same", "sum")

    def _end(self, t: Any) -> Any:
        """An output of the model."""
        if id(t) in self._split:
            raise ValueError(
                f"layer '{self._split[id(t)]}' is cut by columns: it needs one by rows behind it"
            )
        return self._whole(self.model, t)

    # Calls

    def _call(self, call: Call, args: tuple, kwargs: dict) -> Any:
        given, layer = (args, kwargs), call.operation
        tensors = tensors_of(given)
        split = [self._split[id(t)] for t in tensors if id(t) in self._split]
        kind = self.kind(call)
        if kind != "replicate":
            found = self._of_cut(call, kind, given, split)
        elif split:
            found = self._of_slices(call, given, split, tensors)
        elif self.plan and id(call) in self.plan.on:
            found = self._of_parts(call, given, tensors)
        else:
            args, kwargs = filled(given, partial(self._whole, layer))
            found = layer(*args, **kwargs)
        outputs = keras.tree.flatten(found)
        self._kept += outputs
        for t, before in zip(outputs, call.output_tensors, strict=True):
            if kind == "columns" or (kind == "replicate" and split):
                self._split[id(t)] = split[0] if split else layer.name
            if self.plan and id(call) in self.plan.gives | self.plan.on:
                self._parts[id(t)] = before.shape[1]
        return found

    def _refuse_behind(self, name: str, first: str) -> None:
        raise ValueError(
            f"layer '{name}' lies behind '{first}', which is cut by columns: only functions of "
            "single numbers and dropout may, up to a layer that is cut by rows"
        )

    def _of_slices(self, call: Call, given: Any, split: list[str], inputs: list) -> Any:
        """What computes a slice of its output from the same slices of its inputs."""
        operation, (args, kwargs) = call.operation, given
        if len(split) < len(inputs) or not keras_rules.carries(call):
            self._refuse_behind(operation.name, split[0])
        if isinstance(operation, keras.layers.Dropout) and operation.rate:
            n = inputs[0].shape[-1]
            mine = np.arange(self.team.rank * n, (self.team.rank + 1) * n)
            name = self.graph.name_for(operation, "part")
            operation = PartOfDropout(name, operation, -1, n * self.team.size, mine)
        return operation(*args, **kwargs)

    def _of_parts(self, call: Call, given: Any, inputs: list) -> Any:
        """What computes each position by itself, for this rank's positions."""
        layer, length = call.operation, call.output_tensors[0].shape[1]
        mine = self.sums.places(length).kept_by(self.team.rank)
        self._partial |= {id(v) for v in getattr(layer, "trainable_weights", [])}
        if is_dropout(layer):
            dropout = PartOfDropout(self.graph.name_for(layer, "part"), layer, 1, length, mine)
            return dropout(self._part(layer, inputs[0]))
        given = keras_context_rules.part_of_constants(call, given, length, mine)
        args, kwargs = filled(given, partial(self._part, layer))
        return layer(*args, **kwargs)

    def _of_cut(self, call: Call, kind: str, given: Any, split: list[str]) -> Any:
        layer = call.operation
        if layer.name in self._cut:
            raise ValueError(
                f"layer '{layer.name}' occurs twice; layers that share weights can't be cut"
            )
        self._cut.add(layer.name)
        share = keras_rules.check_layer(layer, kind, self.team.size)
        embedding = isinstance(layer, keras.layers.Embedding)
        if kind == "rows" and not split and not embedding:
            raise ValueError(
                f"layer '{layer.name}' is cut by rows: it needs a layer that is cut by columns "
                "before it"
            )
        if split and (kind != "rows" or embedding):
            self._refuse_behind(layer.name, split[0])
        taken = self._entering if kind in ("columns", "heads") else self._whole
        args, kwargs = filled(given, partial(taken, layer))
        cut = self._embedding if embedding else getattr(self, f"_{kind}")
        mine, leave = cut(layer, share, call)
        found = mine(*args, **kwargs)
        for variable, whole, axis in self._arrays(layer, mine, kind):
            self._note(variable, whole, axis, share)
        if leave is None:
            return found
        found = leave(found)
        if leave.bias is not None:
            bias = (layer.output_dense if kind == "heads" else layer).bias
            self._note(leave.bias, bias, None)
            if id(call) in (self.plan.gives if self.plan else ()):
                self._partial.add(id(leave.bias))
        return found

    def _leave(self, call: Call, bias: Any, activation: Any = None) -> Leave:
        layer, (t, *_) = call.operation, call.output_tensors
        length = t.shape[1] if self.plan and id(call) in self.plan.gives else 0
        size = None if bias is None else bias.shape[0]
        how = {"activation": activation, "length": length, "dtype": layer.dtype_policy}
        return Leave(self.graph.name_for(layer, "leave"), self.sums, size, **how)

    def _columns(self, layer: Any, share: int, call: Call) -> tuple[Any, None]:
        size = "units" if isinstance(layer, keras.layers.Dense) else "filters"
        return type(layer).from_config(layer.get_config() | FRESH | {size: share}), None

    def _rows(self, layer: Any, share: int, call: Call) -> tuple[Any, Leave]:
        own = {"use_bias": False, "activation": None}
        leave = self._leave(call, layer.bias if layer.use_bias else None, layer.activation)
        return type(layer).from_config(layer.get_config() | FRESH | own), leave

    def _embedding(self, layer: Any, share: int, call: Call) -> tuple[Any, Leave]:
        place = self.team.rank * share, share, layer.input_dim, layer.output_dim
        return Rows(layer.name, *place, dtype=layer.dtype_policy), self._leave(call, None)

    def _heads(self, layer: Any, share: int, call: Call) -> tuple[Any, Leave]:
        if len(call.output_tensors) > 1:
            raise ValueError(
                f"layer '{layer.name}', cut by heads, returns its scores: leave it out"
            )
        mine = Heads.from_config(layer.get_config() | FRESH | {"num_heads": share})
        return mine, self._leave(call, layer.output_dense.bias if layer.use_bias else None)

    def _arrays(self, layer: Any, mine: Any, kind: str) -> list[tuple[Any, Any, int]]:
        """The weights here, those of the whole layer, and the axis along which they are cut."""
        if isinstance(mine, Rows):
            return [(mine.table, layer.embeddings, 0)]
        if kind == "rows":
            return [(mine.kernel, layer.kernel, -2)]
        if kind == "columns":
            found = [(mine.kernel, layer.kernel, -1)]
            return found + ([(mine.bias, layer.bias, 0)] if layer.use_bias else [])
        found = [(mine.output_dense.kernel, layer.output_dense.kernel, 0)]
        for name in ("query_dense", "key_dense", "value_dense"):
            here, there = getattr(mine, name), getattr(layer, name)
            found.append((here.kernel, there.kernel, -2))
            found += [(here.bias, there.bias, 0)] if layer.use_bias else []
        return found

    def _note(self, variable: Any, whole: Any, axis: int | None, share: int = 0) -> None:
        index = ALL
        if axis is not None:
            index, first = [slice(None)] * len(whole.shape), self.team.rank * share
            index[axis] = slice(first, first + share)
            index = tuple(index)
        shape = np.broadcast_to(0, tuple(whole.shape))[index].shape
        if tuple(variable.shape) != shape:
            raise AssertionError(f"{whole.path}: {whole.shape}, its slice {variable.shape}")
        self._made[id(variable)] = self._number[id(whole)], index, axis is None


def compiled_as(model: Any, local: Any) -> Any:
    """`local`, compiled as `model` is; not by XLA, which can't call a Team."""
    if hasattr(model, "output_names"):  # by which losses and metrics are known
        local.output_names = list(model.output_names)
    local.compile(**model._compile_config.config | {"jit_compile": False})
    if hasattr(model, "strategy_chooses"):
        local.strategy_chooses = model.strategy_chooses
    return local
