"""`SequencePlan`: what computes parts of sequences in the sequence-parallel form of `Cut`.

What lies between the layers that are cut is divided along the sequence, axis 1 of (s, t, ...). Only
what computes each position by itself (keras_context_rules.py) computes a part. All else gets the
whole sequence: convolutions, pooling, recurrent layers, and what is not known. So do layers whose
weights are used twice or have a regulariser, because ranks add up the gradients of their parts.

Which of the able calls compute parts is decided by what ranks then exchange:

    some input is a part, and a layer that is cut comes behind: yes
    ... and none does:  as long as this makes no tensor wider, and needs no matrix
    no input is a part: if a layer that is cut comes behind, likewise

A matrix would need a sum of its gradient over the ranks. So embeddings and output layers that are
not cut compute all positions.

Korthikanti et al., arXiv 2205.05198; bytes and memory: docs/memory.md.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

from tutorial_dl.model_parallel import keras_context_rules
from tutorial_dl.model_parallel.keras_context_rules import is_dropout, positions_in
from tutorial_dl.model_parallel.keras_rules import CONVOLUTIONS
from tutorial_dl.replica.keras.graphs import keras


class SequencePlan:
    """Decides for the calls of a `Cut`.

    Attributes:
        on: Calls that compute a part, by id.
        gives: Calls of layers that are cut, and give each rank a part.

    Raises:
        ValueError: If nothing can be divided.
    """

    def __init__(self, cut: Any) -> None:
        self.cut = cut
        model, calls = cut.model, cut.graph.calls
        for layer in model._flatten_layers():
            if layer.compute_dtype in ("float16", "bfloat16"):
                raise ValueError(
                    f"model '{model.name}' computes in {layer.compute_dtype}, which does not "
                    "fit the sequence-parallel form; leave it out"
                )
        weights = [v for c in calls for v in getattr(c.operation, "weights", [])]
        weights += [v for c in calls for v in c.constants if isinstance(v, keras.Variable)]
        self._uses = Counter(map(id, weights))
        self._weighted: set[int] = set()  # tensors that depend on weights
        for call in calls:
            if getattr(call.operation, "trainable_weights", []) or any(
                id(t) in self._weighted for t in call.input_tensors
            ):
                self._weighted |= set(map(id, call.output_tensors))
        self._able = {id(call) for call in calls if self._is_able(call)}
        entering: set[int] = set()  # tensors that layers which are cut take, by way of able calls
        for call in reversed(calls):
            takes = id(call) in self._able and any(id(t) in entering for t in call.output_tensors)
            if not isinstance(call.operation, CONVOLUTIONS):
                takes |= cut.kind(call) in ("columns", "heads")
            if takes:
                entering |= {id(t) for t in call.input_tensors if self._divides(t)}
        self.on: set[int] = set()
        given: set[int] = set()  # tensors of which ranks have parts
        gives = {id(call.output_tensors[0]): call for call in calls if self._can_give(call)}
        for call in calls:
            outputs = set(map(id, call.output_tensors))
            if outputs & gives.keys():
                given |= outputs
            elif id(call) in self._able and self._pays(call, given, bool(outputs & entering)):
                self.on.add(id(call))
                given |= outputs
        taken = {id(t) for n in calls if id(n) in self.on for t in n.input_tensors}
        self.gives = {id(gives[t]) for t in gives if t in taken | entering}
        if not self.gives:
            raise ValueError(
                f"model '{model.name}' has nothing between layers that are cut that "
                f"{cut.team.size} ranks could divide: the sequence-parallel form needs attention "
                f"or pairs of Dense layers on (samples, positions, ...), at least {cut.team.size} "
                "positions; leave it out"
            )

    def _divides(self, t: Any) -> bool:
        """Whether a tensor has positions, at least one for each rank."""
        known = len(t.shape) > 2 and t.shape[1] is not None
        floats = keras.backend.is_float_dtype(t.dtype)
        return floats and known and t.shape[1] >= self.cut.team.size

    def _can_give(self, call: Any) -> bool:
        """Whether a call is a layer that is cut, which can give each rank a part."""
        kind, layer = self.cut.kind(call), call.operation
        if kind not in ("rows", "heads") or isinstance(layer, CONVOLUTIONS):
            return False
        activation = getattr(layer, "activation", None) if kind == "rows" else None
        known = getattr(activation, "__name__", "linear") in keras_context_rules.ACTIVATIONS
        return known and self._divides(call.output_tensors[0])

    def _is_able(self, call: Any) -> bool:
        """Whether a call that is not cut can compute a part, and has something to divide."""
        outputs, layer = call.output_tensors, call.operation
        # A layer of the user's own may call add_loss, or keep statistics
        if isinstance(layer, keras.Layer) and not keras_context_rules.of_keras(layer):
            return False
        if any(isinstance(one, keras.Variable) for one in call.constants):
            return False
        if self.cut.kind(call) != "replicate" or not all(
            self._divides(t) and id(t) in self._weighted for t in outputs
        ):
            return False
        for v in getattr(layer, "weights", []):
            if self._uses[id(v)] > 1 or getattr(v, "regularizer", None) is not None:
                return False
        length = outputs[0].shape[1]
        if is_dropout(layer):
            return positions_in(call, length)
        return keras_context_rules.by_position(call, length)

    def _pays(self, call: Any, given: set[int], entering: bool) -> bool:
        """Whether a call computes a part; see the top of this file."""
        some = [t for t in call.input_tensors if id(t) in given]
        if some and entering:
            return True
        if any(len(v.shape) > 1 for v in getattr(call.operation, "weights", [])):
            return False
        after = sum(map(width, call.output_tensors))
        if some:
            return after <= sum(map(width, some))
        before = [t for t in call.input_tensors if id(t) in self._weighted]
        return entering and sum(map(width, before)) <= after


def width(t: Any) -> int:
    """Numbers per position."""
    return prod(n or 1 for n in t.shape[2:])
