"""`cut`: from a Keras model to the model of one rank, cut by columns, rows and heads.

The cut follows the model's graph. Each tensor is whole, that is the same on all ranks, or split:
each rank has a slice of its last axis. A layer by columns makes a split tensor of a whole one, a
layer by rows a whole one of a split one. In between, only what computes slice by slice may lie.

    whole -> Enter -> columns -> split -> gelu -> split -> rows -> Leave -> whole

Layers that are not cut are the model's own, in both models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from numba_kernels.team.collectives import Collectives
from tutorial_dl.model_parallel import keras_rules
from tutorial_dl.model_parallel.keras_graph import graph_of, in_order
from tutorial_dl.model_parallel.keras_stage import is_float
from tutorial_dl.model_parallel.keras_tensor_layers import (
    Enter,
    Heads,
    Leave,
    PartOfDropout,
    Rows,
    Sums,
)
from tutorial_dl.replica.holding import ALL
from tutorial_dl.replica.keras_losses import why_masked
from tutorial_dl.replica.keras_own_step import has_own_step
from tutorial_dl.replica.keras_steps import keras

# Initializers of the slices, whose weights are then copied; a user's own could not be made again
FRESH = {"kernel_initializer": "zeros", "bias_initializer": "zeros"}


class Piece(NamedTuple):
    """Where a weight of this rank lies in the whole model."""

    whole: int  # the number of the array there
    index: tuple  # array[index] is this rank's
    alike: bool  # whether all ranks have it
    partial: bool = False  # whether each then has a term of its gradient, which they must add up


class Cut:
    """The model of this rank.

    Args:
        model: The whole model, the same on every rank, functional or sequential; it is built.
        team: The ranks that compute each batch together, T.
        rules: Pattern of layers' names -> "columns", "rows", "heads" or "replicate". The first that
            matches counts; layers without a rule are whole on all ranks. None: `keras_rules.found`.

    Attributes:
        local: The model of this rank, compiled as `model` is. It shares with it the layers that are
            not cut.
        pieces: Of each of its trainable weights, in order: its place in the whole model's.
        rules: The table by which it is cut.

    Raises:
        ValueError: If the model can't be cut so, with the layer's name.
    """

    def __init__(
        self, model: Any, team: Collectives, rules: Mapping[str, str] | None = None
    ) -> None:
        check_model(model, mixed=True)
        self.model, self.team, self.sums = model, team, Sums(team)
        self.graph = graph_of(model)
        self.nodes = in_order(self.graph, model.trainable_weights)
        self.rules = keras_rules.found(model, self.nodes) if rules is None else dict(rules)
        with_weights = [n.operation for n in self.nodes if getattr(n.operation, "weights", None)]
        keras_rules.check_rules(model, self.rules, {layer.name for layer in with_weights})
        self.values = {id(t): t for t in self.graph.inputs}
        self.split: dict[int, str] = {}  # tensors that are split: by which layer
        self.entered: dict[int, Any] = {}  # what Enter makes of a tensor
        self._names: list[str] = []
        self._dropouts: list[Any] = []
        self._made: dict[int, tuple[int, tuple, bool]] = {}  # local weight -> whole, index, alike
        self._number = {id(v): i for i, v in enumerate(model.trainable_weights)}
        self._partial: set[int] = set()  # local weights whose gradients ranks must add up
        self._prepare()
        for node in self.nodes:
            self._compute(node)
        for t in self.graph.outputs:
            if id(t) in self.split:
                raise ValueError(
                    f"layer '{self.split[id(t)]}' is cut by columns: it needs one by rows behind it"
                )
        self.local = self._model()
        self.pieces = [self._piece(v) for v in self.local.trainable_weights]
        for number, times in Counter(piece.whole for piece in self.pieces).items():
            if number is not None and times > 1:
                raise ValueError(
                    f"weights '{model.trainable_weights[number].path}' are used by a layer that is "
                    "cut and by another one: use the rule 'replicate' for the first"
                )

    def _prepare(self) -> None:
        """Called before the first node is computed."""

    def _piece(self, variable: Any) -> Piece:
        whole = self._number.get(id(variable)), ALL, True
        return Piece(*self._made.get(id(variable), whole), id(variable) in self._partial)

    def whole(self, t: Any) -> Any:
        """What this rank computes of a tensor of the whole model, the same on all ranks."""
        return self.values[id(t)]

    def _model(self) -> Any:
        """The model of the tensors that were computed, compiled as the whole one is."""
        if hasattr(self.model, "_inputs_struct"):
            structs = self.model._inputs_struct, self.model._outputs_struct
        else:  # a Sequential
            structs = self.graph.inputs[0], self.graph.outputs[0]
        inputs, outputs = (keras.tree.map_structure(self.whole, one) for one in structs)
        return compiled_as(self.model, keras.Model(inputs, outputs, name=self.model.name))

    def kind(self, node: Any) -> str:
        """How the layer of a node is cut."""
        layer = node.operation
        if isinstance(layer, keras.Layer) and layer.weights:
            return keras_rules.kind_of(layer.name, self.rules)
        return "replicate"

    def _compute(self, node: Any) -> None:
        layer, kind = node.operation, self.kind(node)
        split = [self.split[id(t)] for t in node.input_tensors if id(t) in self.split]
        if kind == "replicate":
            self._whole_or_split(node, split)
            return
        if self._names.count(layer.name):
            raise ValueError(
                f"layer '{layer.name}' occurs twice; layers that share weights can't be cut"
            )
        self._names.append(layer.name)
        share = keras_rules.check_layer(layer, kind, self.team.size)
        embedding = isinstance(layer, keras.layers.Embedding)
        if kind == "rows" and not split and not embedding:
            raise ValueError(
                f"layer '{layer.name}' is cut by rows: it needs a layer that is cut by columns "
                "before it"
            )
        if split and (kind != "rows" or embedding):
            self._refuse_behind(layer.name, split[0])
        if kind == "columns":
            self._columns(node, share)
        elif embedding:
            self._embedding(node, share)
        elif kind == "rows":
            self._rows(node, share)
        else:
            self._heads(node, share)

    def _refuse_behind(self, name: str, first: str) -> None:
        raise ValueError(
            f"layer '{name}' lies behind '{first}', which is cut by columns: only functions of "
            "single numbers and dropout may, up to a layer that is cut by rows"
        )

    def _whole_or_split(self, node: Any, split: list[str]) -> None:
        operation = node.operation
        if split:
            if len(split) < len(node.input_tensors) or not keras_rules.carries(node):
                self._refuse_behind(operation.name, split[0])
            if isinstance(operation, keras.layers.Dropout) and operation.rate:
                again = sum(id(operation) == id(one) for one in self._dropouts)
                self._dropouts.append(operation)
                name = f"{operation.name}_part" + f"_{again + 1}" * (again > 0)
                operation = PartOfDropout(name, operation, self.team, dtype=operation.dtype_policy)
        self._apply(node, operation, self.values)
        if split:
            self.split |= dict.fromkeys(map(id, node.output_tensors), split[0])

    def _apply(self, node: Any, operation: Any, values: dict[int, Any], after: Any = None) -> None:
        """Compute a node by another operation, and note what it gives, after one more layer."""
        args, kwargs = node.arguments.fill_in(values)
        outputs = keras.tree.flatten(operation(*args, **kwargs))
        if after is not None:
            outputs = [after(one) for one in outputs]
        self.values |= dict(zip(map(id, node.output_tensors), outputs, strict=True))

    def _enter(self, node: Any) -> dict[int, Any]:
        """The values that a layer is to take: numbers of its inputs go through Enter, once each."""
        values = dict(self.values)
        for t in node.input_tensors:
            if is_float(t.dtype):
                if id(t) not in self.entered:
                    name = f"{node.operation.name}_enter"
                    name += "" if t is node.input_tensors[0] else f"_{len(self.entered)}"
                    enter = Enter(name, self.sums, dtype=t.dtype)  # it casts nothing
                    self.entered[id(t)] = enter(self.values[id(t)])
                values[id(t)] = self.entered[id(t)]
        return values

    def _of(self, axis: int, dimensions: int, share: int) -> tuple:
        """The index of this rank's slice of an axis."""
        first = self.team.rank * share
        index = [slice(None)] * dimensions
        index[axis] = slice(first, first + share)
        return tuple(index)

    def _note(self, variable: Any, whole: Any, axis: int | None, share: int = 0) -> None:
        index = ALL if axis is None else self._of(axis, len(whole.shape), share)
        if tuple(variable.shape) != tuple(len_of(index, whole.shape)):
            raise AssertionError(f"{whole.path}: {whole.shape}, its slice {variable.shape}")
        self._made[id(variable)] = self._number[id(whole)], index, axis is None

    def _columns(self, node: Any, share: int) -> None:
        layer = node.operation
        size = "units" if isinstance(layer, keras.layers.Dense) else "filters"
        mine = type(layer).from_config(layer.get_config() | FRESH | {size: share})
        self._apply(node, mine, self._enter(node))
        self.split |= dict.fromkeys(map(id, node.output_tensors), layer.name)
        self._note(mine.kernel, layer.kernel, -1, share)
        if layer.use_bias:
            self._note(mine.bias, layer.bias, 0, share)

    def _rows(self, node: Any, share: int) -> None:
        layer = node.operation
        own = {"use_bias": False, "activation": None}
        mine = type(layer).from_config(layer.get_config() | FRESH | own)
        leave = self._leave(node, layer.bias if layer.use_bias else None, layer.activation)
        self._apply(node, mine, self.values, leave)
        self._note(mine.kernel, layer.kernel, -2, share)
        if layer.use_bias:
            self._note(leave.bias, layer.bias, None)

    def _leave(self, node: Any, bias: Any, activation: Any = None) -> Leave:
        size = None if bias is None else bias.shape[0]
        layer = node.operation
        how = {"activation": activation, "dtype": layer.dtype_policy}
        return Leave(f"{layer.name}_leave", self.sums, size, **how)

    def _embedding(self, node: Any, share: int) -> None:
        layer = node.operation
        place = self.team.rank * share, share, layer.input_dim, layer.output_dim
        mine = Rows(layer.name, *place, dtype=layer.dtype_policy)
        self._apply(node, mine, self.values, self._leave(node, None))
        self._note(mine.table, layer.embeddings, 0, share)

    def _heads(self, node: Any, share: int) -> None:
        layer = node.operation
        if len(node.output_tensors) > 1:
            raise ValueError(
                f"layer '{layer.name}', cut by heads, returns its scores: leave it out"
            )
        mine = Heads.from_config(layer.get_config() | FRESH | {"num_heads": share})
        bias = layer.output_dense.bias if layer.use_bias else None
        leave = self._leave(node, bias)
        self._apply(node, mine, self._enter(node), leave)
        for name in ("query_dense", "key_dense", "value_dense"):
            self._note(getattr(mine, name).kernel, getattr(layer, name).kernel, -2, share)
            if layer.use_bias:
                self._note(getattr(mine, name).bias, getattr(layer, name).bias, 0, share)
        self._note(mine.output_dense.kernel, layer.output_dense.kernel, 0, share)
        if bias is not None:
            self._note(leave.bias, bias, None)


def compiled_as(model: Any, local: Any) -> Any:
    """`local`, compiled as `model` is; not by XLA, which can't call a Team."""
    if hasattr(model, "output_names"):  # by which losses and metrics are known
        local.output_names = list(model.output_names)
    local.compile(**model._compile_config.config | {"jit_compile": False})
    if hasattr(model, "strategy_chooses"):
        local.strategy_chooses = model.strategy_chooses
    return local


def len_of(index: tuple, shape: tuple) -> list[int]:
    """The shape of array[index], for an array of this shape."""
    if index == ALL:
        return list(shape)
    return [len(range(*one.indices(n))) for one, n in zip(index, shape, strict=True)]


def check_model(model: Any, way: str = "tensor parallelism", mixed: bool = False) -> None:
    """Raise ValueError, with the layer's name, if ranks can't compute a model exactly together.

    `mixed`: layers may compute in half precision.
    """

    def refuse(what: str, instead: str) -> None:
        raise ValueError(f"{way} can't compute {what}: {instead}")

    if not getattr(model, "inputs", None) or has_own_step(model):
        refuse(f"model '{model.name}'", "it takes a functional or sequential one")
    plain = keras.Sequential if isinstance(model, keras.Sequential) else type(graph_of(model))
    for name in ("call", "compute_loss", "compute_metrics", "test_step"):
        if getattr(type(model), name) is not getattr(plain, name):
            refuse(f"model '{model.name}'", f"its class has a {name} of its own")
    if words := why_masked(model):
        refuse(*words)
    for layer in model._flatten_layers():
        if layer.compute_dtype != layer.variable_dtype and not mixed:
            refuse(
                f"layer '{layer.name}'",
                f"it computes in {layer.compute_dtype}, its weights are {layer.variable_dtype}",
            )
        if getattr(layer, "stateful", False):
            refuse(f"layer '{layer.name}'", "it keeps states from batch to batch")
