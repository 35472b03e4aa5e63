"""`KerasParts`: a Keras model of layers that can be cut into stages, computed by TensorFlow.

A functional or sequential model is a graph of calls (keras_graph.py). A cut divides them; what goes
over a boundary are all tensors that calls before it give and calls after it take.

What computes the calls between two cuts: keras_stage.py.
What is refused by name: keras_checks.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tutorial_dl.model_parallel.keras_checks import accuracy, check_stages
from tutorial_dl.model_parallel.keras_graph import Graph
from tutorial_dl.model_parallel.keras_stage import KerasStage, forget
from tutorial_dl.model_parallel.stages import Boundary, Parts
from tutorial_dl.replica.base import Segment
from tutorial_dl.replica.keras.replica import KerasReplica


class KerasParts(Parts):
    """The calls of a Keras model.

    Args:
        replica: The model.
        what: In words, what computes it stage by stage. All but a pipeline compute whole batches.

    Raises:
        ValueError: If the model has something that this can't compute exactly, with the layer's
            name.
    """

    def __init__(self, replica: KerasReplica, what: str = "a pipeline") -> None:
        self.replica, self.model, self.what = replica, replica.model, what
        self.made: list[KerasStage] = []  # this rank's stages
        check_stages(replica, what, in_pieces=what == "a pipeline")
        self.segments, self.dtype = replica.segments, replica.dtype
        self.graph = Graph(self.model)
        self._number = {id(v): i for i, v in enumerate(self.model.trainable_weights)}
        # As the user knows them: a layer may stand for another one.
        operations = [call.operation for call in self.graph.calls]
        self.names = [getattr(one, "stands_for", one.name) for one in operations]
        self.metrics = ("loss", "accuracy") if accuracy(self.model) else ("loss",)
        self._starts = self._weights()

    def _own(self, call: Any) -> list[int]:
        """The numbers of a call's trainable weights."""
        found = getattr(call.operation, "trainable_weights", [])
        return sorted(self._number[id(v)] for v in found)

    def _weights(self) -> list[int]:
        """Where the weights of each call begin in the vectors, and where the last ones end."""
        starts, seen = [], -1
        users: dict[int, str] = {}
        ends = [*(s.offset for s in self.segments), self.replica.parameters.size]
        for call in self.graph.calls:
            starts.append(ends[seen + 1])
            for number in self._own(call):
                if number in users or number != seen + 1:
                    name = self.segments[number].name
                    raise ValueError(
                        f"weights '{name}' are used by layers '{users.get(number, '?')}' and "
                        f"'{call.operation.name}': {self.what} needs layers with weights of their "
                        "own, in their order"
                    )
                users[number], seen = call.operation.name, number
        return [*starts, ends[-1]]

    def weights_before(self, layer):
        return self._starts[layer]

    def outputs(self, x, places):
        cuts = [self.graph.crossing(place) for place in places]
        return [[Boundary(tuple(t.shape[1:]), t.dtype) for t in cut] for cut in cuts]

    def stage(self, first, last):
        begin, end = self._starts[first], self._starts[last]
        numbers = [i for call in self.graph.calls[first:last] for i in self._own(call)]
        own = [self.segments[i] for i in numbers]
        made = KerasStage(
            self.names[first:last],
            self.graph.between(first, last),
            tuple(Segment(s.name, s.offset - begin, s.shape) for s in own),
            end - begin,
            [self.model.trainable_weights[i] for i in numbers],
            self.model,
            begins=first == 0,
            counts_right="accuracy" in self.metrics,
        )
        self.made.append(made)
        return made

    def costs(self, x):
        return self.graph.seconds(x)

    def forget(self, stages):
        self.replica.parameters = self.replica.gradient = np.zeros(0, self.dtype)
        self._leave_others()

    def _leave_others(self) -> None:
        mine = {id(v) for stage in self.made for v in stage.variables}
        forget([v for v in self.model.trainable_weights if id(v) not in mine])

    def save(self, path, parameters, *trained):
        try:
            if hasattr(self.replica, "whole"):  # layers or sequences are cut, too
                self.replica.save(path, *trained, parameters=parameters)
            else:
                whole = zip(self.segments, self.model.trainable_weights, strict=True)
                for segment, variable in whole:
                    variable.assign(segment.view(parameters))
                self.replica.save(path, *trained)
        finally:
            for stage in self.made:
                stage.hold(*stage.held)
            self._leave_others()
