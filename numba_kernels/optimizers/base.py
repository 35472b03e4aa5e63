"""What all optimizers share: hyper-parameters that don't change, and a state that does.

An optimizer is a frozen dataclass of hyper-parameters. Its rule is one kernel,

    kernel(parameters, gradient, slots, start, hyper)

where `slots`, shape (k, n), are its k running averages, `hyper` the numbers of this step, and
`start` the place in `slots` that belongs to the first parameter. A kernel touches every element
once, in place, and works on any slice: that is what lets each rank update its own share (fused.py).

LARS and LAMB scale the step of each layer by norms over all of the layer, so they take two passes:

    squares = rule.begin(parameters, gradient, state)      sums of squares, one row a layer
    rule.finish(parameters, gradient, state, squares)

`update` does both. Where a layer lies in several slices, as it does when ranks share out the
parameters, the sums of all slices are added between the two passes; nothing else is exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module

import numpy as np

from ..shared.window import aligned
from .names import RULES


@dataclass
class State:
    """What an optimizer remembers, and how its elements belong to layers.

    `step` (updates done so far) and `slots` (shape (k, n), running averages) are all there is to
    save: put both back into a fresh `init` and training goes on as if it had not stopped.
    """

    step: int
    slots: np.ndarray
    pieces: np.ndarray  # (pieces, 3) int64: [first, last + 1, layer] in `slots`, in order, no gaps
    layers: int  # of the whole vector; 0 for a rule that does not ask


class Optimizer:
    """Base class: `init` and `update` on top of `hyper` and `kernel` of the rule."""

    slots = 0  # running averages that the rule keeps
    rule = -1  # its number in the compiled switch (switch.py)
    layered = False  # whether it needs norms of layers
    velocity = None  # which running average has learning rates of the past in it

    def init(
        self, n: int, dtype=np.float32, segments: Iterable | None = None, first: int = 0
    ) -> State:
        """The state for `n` parameters before the first update.

        Args:
            n: parameters of this slice
            dtype: float32 or float64, that of the parameters
            segments: where the layers of the whole vector begin, in elements: numbers, or objects
                with an `offset`. LARS and LAMB need them ([0] makes all one layer), other rules
                don't look. Elements that fill a gap count with the layer before: they hold zero.
            first: where in the whole vector this slice begins

        Raises ValueError for segments that are missing or out of order.
        """
        slots = aligned(self.slots * n, np.dtype(dtype)).reshape(self.slots, n)
        if not self.layered:
            return State(0, slots, np.array([[0, n, 0]]), 0)
        if segments is None:
            raise ValueError(
                f"{type(self).__name__} scales each layer's step: init(n, segments=...) is needed, "
                "the offsets where layers begin ([0]: all one layer)"
            )
        offsets = [int(getattr(segment, "offset", segment)) for segment in segments]
        if not offsets or offsets[0] != 0 or offsets != sorted(offsets):
            raise ValueError(f"layers begin at {offsets}; ascending offsets from 0 are needed")
        return State(0, slots, cut(offsets, first, first + n), len(offsets))

    @property
    def name(self) -> str:
        """What `get` and `--optimizer` call this class: "adam"; of a user's class, its own name."""
        kind = type(self).__name__
        return next((name for name, (_, known, _) in RULES.items() if known == kind), kind)

    @property
    def in_words(self) -> str:
        """For messages: "adam", "sgd with momentum 0.9"."""
        momentum = getattr(self, "momentum", 0)
        return f"{self.name} with momentum {momentum:g}" if momentum else self.name

    def hyper(self, step: int) -> np.ndarray:
        """The kernel's numbers for update number `step` (1 is the first), float64."""
        raise NotImplementedError

    def update(self, parameters: np.ndarray, gradient: np.ndarray, state: State) -> None:
        """One update in place, over flat arrays of one length and dtype; counts it in `state`."""
        squares = self.begin(parameters, gradient, state) if self.layered else NO_LAYERS
        self.finish(parameters, gradient, state, squares)

    def at_rate(self, learning_rate: float, state: State | None = None) -> Optimizer:
        """This rule with another learning rate, from the next update on.

        With a `state`, its velocity (of SGD's momentum, RMSprop's and LARS's) is scaled by new
        rate / old rate in place: the momentum correction of Goyal et al., arXiv 1706.02677,
        section 3. It does what a velocity without rates in it would: v <- mu v + g; w <- w - eta v.
        """
        old, slot = self.learning_rate, self.velocity
        if state is not None and slot is not None and slot < len(state.slots) and old > 0:
            state.slots[slot] *= state.slots.dtype.type(learning_rate / old)
        return replace(self, learning_rate=learning_rate)

    def begin(self, parameters: np.ndarray, gradient: np.ndarray, state: State) -> np.ndarray:
        """First pass: this slice's sums of squares, float64, shape (layers, 2).

        Column 0 is of the parameters, column 1 of what the rule takes for its direction. It may
        renew running averages, so call it once an update. Shape (0, 2) where no norms are needed.
        """
        check_vectors(parameters, gradient, state)
        squares = np.zeros((state.layers, 2))
        if state.layers:
            _compiled("begin")(
                self.rule, parameters, gradient, state.slots, state.pieces,
                self.hyper(state.step + 1), squares,
            )  # fmt: skip
        return squares

    def finish(
        self, parameters: np.ndarray, gradient: np.ndarray, state: State, squares: np.ndarray
    ) -> None:
        """Second pass: the update, given the sums of `begin` over all slices; counts it."""
        check_vectors(parameters, gradient, state)
        if squares.shape != (state.layers, 2):
            raise ValueError(f"squares have shape {squares.shape}, not {(state.layers, 2)}")
        state.step += 1
        _compiled("finish")(
            self.rule, parameters, gradient, state.slots, state.pieces, self.hyper(state.step),
            squares,
        )  # fmt: skip


NO_LAYERS = np.zeros((0, 2))

# The compiled switch over all rules. It imports the rules, which import this file: so it hands its
# functions in here, and the package loads it with the first rule that is asked for (__init__.py).
_switch: dict = {}


def install(begin, finish) -> None:
    """Take the compiled `begin` and `finish` of switch.py."""
    _switch.update(begin=begin, finish=finish)


def _compiled(name: str):
    if not _switch:  # the rule was imported from its own file, not from the package
        import_module("numba_kernels.optimizers.switch")
    return _switch[name]


def cut(offsets: list[int], low: int, high: int) -> np.ndarray:
    """The part of each layer that lies in [low, high), as rows [first, last + 1, layer] from low.

    >>> cut([0, 10, 12], 4, 20).tolist()
    [[0, 6, 0], [6, 8, 1], [8, 16, 2]]
    """
    edges = [*offsets, max(high, offsets[-1])]
    rows = [
        [max(edges[i], low) - low, min(edges[i + 1], high) - low, i] for i in range(len(offsets))
    ]
    return np.array([row for row in rows if row[0] < row[1]], np.int64).reshape(-1, 3)


def check_vectors(parameters: np.ndarray, gradient: np.ndarray, state: State) -> None:
    """ValueError or TypeError unless all three have one length and dtype."""
    if not parameters.shape == gradient.shape == state.slots.shape[1:]:
        raise ValueError(
            f"shapes differ: parameters {parameters.shape}, gradient {gradient.shape}, "
            f"state {state.slots.shape[1:]}"
        )
    if not parameters.dtype == gradient.dtype == state.slots.dtype:
        raise TypeError(
            f"dtypes differ: parameters {parameters.dtype}, gradient {gradient.dtype}, "
            f"state {state.slots.dtype}"
        )


def check_range(name: str, value: float, low: float, high: float) -> None:
    """ValueError unless low <= value < high."""
    if not low <= value < high:
        raise ValueError(f"{name} is {value}; {low} <= {name} < {high} is needed")


TINY = float(np.finfo(np.float32).tiny)  # the lower end of what must be above 0, in float32 too
