"""`CutInParts`: the sequence-parallel form of `keras_tensor.Cut`.

What lies between the layers that are cut is divided along the sequence, axis 1 of (s, t, ...):

    x -> Divide -> norm, sum, dropout -> EnterFromPart -> attention, a pair -> LeaveInParts -> part
                         ^ on parts                         on all positions

A rank has one form of each tensor or both: all of it (`values` of Cut, the same on all ranks), or
its part (`parts`). Only nodes that compute each position by itself (keras_context_rules.py) compute
a part. All others get the whole sequence, by `Join`: convolutions, pooling, recurrent layers, and
what is not known. So do layers whose weights are used twice or have a regulariser, because ranks
add up the gradients of their parts.

Which of the able nodes compute parts is decided by what ranks then exchange:

    some input is a part, and a layer that is cut comes behind: yes
    ... and none does:  as long as this makes no tensor wider, and needs no matrix
    no input is a part: if a layer that is cut comes behind, likewise

A matrix would need a sum of its gradient over the ranks. So embeddings and output layers that are
not cut compute all positions.

Korthikanti et al., arXiv 2205.05198; bytes and memory: tensor.py.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import numpy as np

from tutorial_dl.model_parallel import keras_context_rules
from tutorial_dl.model_parallel.keras_context import is_dropout, positions_in
from tutorial_dl.model_parallel.keras_context_layers import DropoutOfPart
from tutorial_dl.model_parallel.keras_rules import CONVOLUTIONS
from tutorial_dl.model_parallel.keras_stage import is_float
from tutorial_dl.model_parallel.keras_tensor import Cut
from tutorial_dl.model_parallel.keras_tensor_layers import (
    Divide,
    EnterFromPart,
    Join,
    Leave,
    LeaveInParts,
)
from tutorial_dl.model_parallel.positions import Positions
from tutorial_dl.replica.keras.graphs import keras


class OfSequence:
    """The positions of this rank, of sequences of so many."""

    def __init__(self, positions: Positions, rank: int) -> None:
        self.positions, self.mine = positions, positions.of(rank)


class CutInParts(Cut):
    """The model of this rank, which has a part of each sequence between the layers that are cut.

    Arguments, attributes and errors are those of Cut; and ValueError if nothing can be divided. If
    the ranks do not divide the positions, their parts differ by one position.
    """

    def _prepare(self) -> None:
        for layer in self.model._flatten_layers():
            if layer.compute_dtype in ("float16", "bfloat16"):
                raise ValueError(
                    f"model '{self.model.name}' computes in {layer.compute_dtype}, which does not "
                    "fit the sequence-parallel form; leave it out"
                )
        self.parts: dict[int, Any] = {}  # tensors of the whole model by id: this rank's part
        self._fresh: Counter[str] = Counter()
        weights = [v for n in self.nodes for v in getattr(n.operation, "weights", [])]
        weights += [v for n in self.nodes for v in given_to(n) if isinstance(v, keras.Variable)]
        self._uses = Counter(map(id, weights))
        self._weighted: set[int] = set()  # tensors that depend on weights
        for node in self.nodes:
            if getattr(node.operation, "trainable_weights", []) or any(
                id(t) in self._weighted for t in node.input_tensors
            ):
                self._weighted |= set(map(id, node.output_tensors))
        self._able = {id(node) for node in self.nodes if self._is_able(node)}
        self._plan()

    def _plan(self) -> None:
        """Decide which nodes compute a part, and which layers that are cut give one."""
        entering: set[int] = set()  # tensors that layers which are cut take, by way of able nodes
        for node in reversed(self.nodes):
            able = id(node) in self._able and any(id(t) in entering for t in node.output_tensors)
            if able or (self.kind(node) in ("columns", "heads") and not_convolving(node)):
                entering |= {id(t) for t in node.input_tensors if self._divides(t)}
        self._on: set[int] = set()  # nodes that compute a part
        given: set[int] = set()  # tensors of which ranks have parts
        gives = {id(node.output_tensors[0]): node for node in self.nodes if self._can_give(node)}
        for node in self.nodes:
            outputs = set(map(id, node.output_tensors))
            if outputs & gives.keys():
                given |= outputs
            elif id(node) in self._able and self._pays(node, given, bool(outputs & entering)):
                self._on.add(id(node))
                given |= outputs
        taken = {id(t) for n in self.nodes if id(n) in self._on for t in n.input_tensors}
        self._gives = {id(gives[t]) for t in gives if t in taken | entering}
        if not self._gives:
            raise ValueError(
                f"model '{self.model.name}' has nothing between layers that are cut that "
                f"{self.team.size} ranks could divide: the sequence-parallel form needs attention "
                f"or pairs of Dense layers on (samples, positions, ...), at least {self.team.size} "
                "positions; leave it out"
            )

    def _divides(self, t: Any) -> bool:
        """Whether a tensor has positions, at least one for each rank."""
        known = len(t.shape) > 2 and t.shape[1] is not None and is_float(t.dtype)
        return known and t.shape[1] >= self.team.size

    def _can_give(self, node: Any) -> bool:
        """Whether a node is a layer that is cut, which can give each rank a part."""
        kind, layer = self.kind(node), node.operation
        if kind not in ("rows", "heads") or not not_convolving(node):
            return False
        activation = getattr(layer, "activation", None) if kind == "rows" else None
        known = getattr(activation, "__name__", "linear") in keras_context_rules.ACTIVATIONS
        return known and self._divides(node.output_tensors[0])

    def _is_able(self, node: Any) -> bool:
        """Whether a node that is not cut can compute a part, and has something to divide."""
        outputs, layer = node.output_tensors, node.operation
        # A layer of the user's own may call add_loss, or keep statistics
        if isinstance(layer, keras.Layer) and not keras_context_rules.of_keras(layer):
            return False
        if any(isinstance(a, keras.Variable) for a in given_to(node)):
            return False
        if self.kind(node) != "replicate" or not all(
            self._divides(t) and id(t) in self._weighted for t in outputs
        ):
            return False
        for v in getattr(layer, "weights", []):
            if self._uses[id(v)] > 1 or getattr(v, "regularizer", None) is not None:
                return False
        length = outputs[0].shape[1]
        if is_dropout(layer):
            return positions_in(node, length)
        return keras_context_rules.by_position(node, length)

    def _pays(self, node: Any, given: set[int], entering: bool) -> bool:
        """Whether a node computes a part; see the top of this file."""
        some = [t for t in node.input_tensors if id(t) in given]
        if some and entering:
            return True
        if any(len(v.shape) > 1 for v in getattr(node.operation, "weights", [])):
            return False
        after = sum(map(width, node.output_tensors))
        if some:
            return after <= sum(map(width, some))
        before = [t for t in node.input_tensors if id(t) in self._weighted]
        return entering and sum(map(width, before)) <= after

    def part(self, t: Any) -> Any:
        """This rank's part of a tensor of the whole model."""
        if id(t) not in self.parts:
            name = self._named(t, "divide")
            divide = Divide(name, self.sums, t.shape[1], **casts_nothing(t))
            self.parts[id(t)] = divide(self.values[id(t)])
        return self.parts[id(t)]

    def whole(self, t: Any) -> Any:
        if id(t) not in self.values:
            name = self._named(t, "join")
            join = Join(name, self.sums, t.shape[1], **casts_nothing(t))
            self.values[id(t)] = join(self.parts[id(t)])
        return self.values[id(t)]

    def _named(self, one: Any, suffix: str) -> str:
        """A name of its own for a layer that computes something of a tensor or layer."""
        name = f"{one.name}_{suffix}"
        self._fresh[name] += 1
        return name if self._fresh[name] == 1 else f"{name}_{self._fresh[name]}"

    def _whole_or_split(self, node: Any, split: list[str]) -> None:
        if id(node) in self._on and not split:
            self._on_part(node)
            return
        if not split:
            for t in node.input_tensors:
                self.whole(t)
        super()._whole_or_split(node, split)

    def _on_part(self, node: Any) -> None:
        layer, length = node.operation, node.output_tensors[0].shape[1]
        mine = OfSequence(self.sums.reductions.places(length), self.team.rank)
        if is_dropout(layer):
            dropout = DropoutOfPart(
                self._named(layer, "part"), layer, mine, dtype=layer.dtype_policy
            )
            outputs = [dropout(self.part(node.input_tensors[0]))]
        else:
            given = keras_context_rules.part_of_constants(
                node, length, lambda array, axis: np.take(array, mine.mine, axis)
            )
            args, kwargs = keras.tree.map_structure(
                lambda a: self.part(a) if isinstance(a, keras.KerasTensor) else a, given
            )
            outputs = keras.tree.flatten(layer(*args, **kwargs))
        self.parts |= dict(zip(map(id, node.output_tensors), outputs, strict=True))
        self._partial |= {id(v) for v in getattr(layer, "trainable_weights", [])}

    def _enter(self, node: Any) -> dict[int, Any]:
        for t in node.input_tensors:
            if id(t) in self.parts and is_float(t.dtype) and not_convolving(node):
                if id(t) not in self.entered:
                    enter = EnterFromPart(
                        self._named(t, "enter"), self.sums, t.shape[1], dtype=t.dtype
                    )
                    self.entered[id(t)] = enter(self.parts[id(t)])
            else:
                self.whole(t)
        return super()._enter(node)

    def _leave(self, node: Any, bias: Any, activation: Any = None) -> Leave:
        if id(node) not in self._gives:
            return super()._leave(node, bias, activation)
        name, size = f"{node.operation.name}_leave", None if bias is None else bias.shape[0]
        length = node.output_tensors[0].shape[1]
        how = {"activation": activation, "dtype": node.operation.dtype_policy}
        return LeaveInParts(name, self.sums, length, size, **how)

    def _apply(self, node: Any, operation: Any, values: dict[int, Any], after: Any = None) -> None:
        super()._apply(node, operation, values, after)
        if isinstance(after, LeaveInParts):
            for t in node.output_tensors:
                self.parts[id(t)] = self.values.pop(id(t))
            self._partial |= set() if after.bias is None else {id(after.bias)}


def casts_nothing(t: Any) -> dict[str, Any]:
    """The option of a layer that is to leave the type of its input as it is."""
    return {"dtype": t.dtype} if is_float(t.dtype) else {}


def given_to(node: Any) -> list[Any]:
    """All arguments of a node's call."""
    return keras.tree.flatten((node.arguments.args, node.arguments.kwargs))


def not_convolving(node: Any) -> bool:
    return not isinstance(node.operation, CONVOLUTIONS)


def width(t: Any) -> int:
    """Numbers per position."""
    return prod(n or 1 for n in t.shape[2:])
