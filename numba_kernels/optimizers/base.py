"""The base class of all optimizers: constant hyper-parameters, and a state that changes.

An optimizer is a frozen dataclass of hyper-parameters. Its rule is one kernel,

    kernel(parameters, gradient, slots, start, hyper, over=None)

where `slots`, shape (k, n), holds k running averages, `hyper` holds the numbers of this step, and
`start` is the column of `slots` that belongs to the first parameter. A kernel touches every element
once, in place, and works on any slice, so each rank can update its own share (step.py, as in
ZeRO). If `over` is True, it also writes the new parameters over the gradient (serve.py). Numba
compiles a kernel once with and once without that: a test for None is decided by the type.

LARS and LAMB scale the step of each layer by norms over the whole layer, so they take two passes:

    squares = rule.begin(parameters, gradient, state)      sums of squares, one row per layer
    rule.finish(parameters, gradient, state, squares)

`update` does both. If a layer lies in several slices, as when the ranks divide the parameters, the
sums of all slices are added between the two passes; nothing else is exchanged.

Rules that update whole matrices are `whole` (matrices.py): slices end between arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ..shared.window import aligned
from . import OPTIMIZERS, passes


@dataclass
class State:
    """The state of an optimizer, and which of its elements belong to which layer.

    A checkpoint needs only `step` (updates done so far) and `slots` (shape (k, n), running
    averages): copy both into a new `init`, and training continues as if it had not stopped.
    """

    step: int
    slots: np.ndarray
    pieces: np.ndarray  # (pieces, 3) int64: [first, last + 1, layer] in `slots`, in order, no gaps
    layers: int  # of the whole vector; 0 for a rule that does not need layers
    arrays: tuple = ()  # (first, last + 1, shape) in `slots` of those that a `whole` rule updates


class Optimizer:
    """Base class: implements `init` and `update` with the rule's `hyper` and `kernel`."""

    slots = 0  # number of running averages that the rule keeps
    rule = -1  # its number in the compiled switch (switch.py)
    layered = False  # whether it needs norms of layers
    undivided = False  # whether it must update all parameters at once, so ranks can't divide them
    whole = False  # whether arrays must lie in the slice of one rank (`edges`)
    by_parts = False  # whether its update is more than its kernel: the fused step then has parts
    of_model = False  # whether it needs sums over all parameters of the model
    shows = ""  # when other weights than it trains are shown: "", "always" or "at the end"
    velocity = None  # index of the running average that contains past learning rates

    def __post_init__(self):
        for name in self.__dataclass_fields__:
            if name in RANGES and getattr(self, name) is not None:
                check_range(name, getattr(self, name))

    def init(
        self, n: int, dtype=np.float32, segments: Iterable | None = None, first: int = 0
    ) -> State:
        """Return the state for `n` parameters before the first update.

        Args:
            n: number of parameters in this slice.
            dtype: float32 or float64, the dtype of the parameters.
            segments: where the layers of the whole vector begin, in elements: numbers, or objects
                with an `offset`. LARS and LAMB need them ([0] makes one layer of all parameters);
                other rules ignore them. Elements in a gap between layers hold zero and count with
                the layer before.
            first: where in the whole vector this slice begins, in elements.
        """
        slots = aligned(self.slots * n, np.dtype(dtype)).reshape(self.slots, n)
        if not self.layered:
            return State(0, slots, np.array([[0, n, 0]]), 0)
        if segments is None:
            raise ValueError(
                f"{type(self).__name__} scales each layer's step: call init(n, segments=...) with "
                "the offsets where layers begin ([0]: one layer)"
            )
        offsets = offsets_of(segments)
        return State(0, slots, cut(offsets, first, first + n), len(offsets))

    @property
    def name(self) -> str:
        """Name for `get` and `--optimizer`, such as "adam"; a user's class has its class name."""
        kind = type(self).__name__
        return next((name for name, (_, known, _) in OPTIMIZERS.items() if known == kind), kind)

    @property
    def in_words(self) -> str:
        """Description for messages, such as "adam" or "sgd with momentum 0.9"."""
        momentum = getattr(self, "momentum", 0)
        return f"{self.name} with momentum {momentum:g}" if momentum else self.name

    def hyper(self, step: int) -> np.ndarray:
        """Return the kernel's numbers for update number `step` (the first is 1), float64.

        These are the hyper-parameters in their order, unless a rule says otherwise.
        """
        return np.array([*vars(self).values()], np.float64)

    def update(self, parameters: np.ndarray, gradient: np.ndarray, state: State) -> None:
        """Do one update of `parameters` (n,) in place and count it in `state`, from `init(n)`."""
        squares = self.begin(parameters, gradient, state) if self.layered else NO_LAYERS
        self.finish(parameters, gradient, state, squares)

    def show(self, parameters: np.ndarray, state: State, shown: bool) -> None:
        """Turn the weights that are trained into those to validate and to save, or back; in place.

        A rule that `shows` has it. It shows them "always": in each validation and at the end; or
        "at the end" only.
        """

    def at_rate(self, learning_rate: float, state: State | None = None) -> Optimizer:
        """Return this rule with another learning rate, for the next update on.

        If a `state` is given, its velocity (SGD with momentum, RMSprop and LARS have one) is scaled
        by new rate / old rate in place: the momentum correction of Goyal et al., arXiv 1706.02677,
        section 3. The updates are then those of a velocity that contains no learning rate:
        v <- mu v + g; w <- w - eta v.
        """
        old, slot = self.learning_rate, self.velocity
        if state is not None and slot is not None and slot < self.slots and old > 0:
            state.slots[slot] *= state.slots.dtype.type(learning_rate / old)
        return replace(self, learning_rate=learning_rate)

    def begin(self, parameters: np.ndarray, gradient: np.ndarray, state: State) -> np.ndarray:
        """Do the first pass, which may update running averages: call it once per update.

        Returns this slice's sums of squares, float64, shape (layers, 2): of the parameters, and of
        the rule's direction. The shape is (0, 2) if the rule needs no norms.
        """
        check_vectors(parameters, gradient, state)
        squares = np.zeros((state.layers, 2))
        if state.layers:
            begin, _ = passes()
            begin(
                self.rule, parameters, gradient, state.slots, state.pieces,
                self.hyper(state.step + 1), squares,
            )  # fmt: skip
        return squares

    def finish(
        self, parameters: np.ndarray, gradient: np.ndarray, state: State, squares: np.ndarray
    ) -> None:
        """Do the second pass, the update, with the sum of all slices' results of `begin`."""
        check_vectors(parameters, gradient, state)
        if squares.shape != (state.layers, 2):
            raise ValueError(f"squares must have shape {(state.layers, 2)}, got {squares.shape}")
        state.step += 1
        _, finish = passes()
        finish(
            self.rule, parameters, gradient, state.slots, state.pieces, self.hyper(state.step),
            squares,
        )  # fmt: skip


NO_LAYERS = np.zeros((0, 2))


def cut(offsets: list[int], low: int, high: int) -> np.ndarray:
    """Return the part of each layer in [low, high), as rows [first, last + 1, layer] from low."""
    edges = [*offsets, max(high, offsets[-1])]
    rows = [
        [max(edges[i], low) - low, min(edges[i + 1], high) - low, i] for i in range(len(offsets))
    ]
    return np.array([row for row in rows if row[0] < row[1]], np.int64).reshape(-1, 3)


def check_vectors(parameters: np.ndarray, gradient: np.ndarray, state: State) -> None:
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


def offsets_of(segments: Iterable) -> list[int]:
    """Return where layers begin; raise ValueError if that does not ascend from 0."""
    offsets = [int(getattr(segment, "offset", segment)) for segment in segments]
    if not offsets or offsets[0] != 0 or offsets != sorted(offsets):
        raise ValueError(f"offsets of layers must ascend from 0, got {offsets}")
    return offsets


TINY = float(np.finfo(np.float32).tiny)  # lower bound for values above 0, in float32 too
RANGES = {  # of hyper-parameters: [low, high)
    **dict.fromkeys(("learning_rate", "weight_decay", "initial_accumulator_value"), (0, np.inf)),
    **dict.fromkeys(("adam_weight_decay", "warm_up"), (0, np.inf)),
    **dict.fromkeys(("momentum", "rho", "beta_1", "beta_2", "keep"), (0, 1)),
    **dict.fromkeys(("adam_beta_1", "adam_beta_2"), (0, 1)),
    **dict.fromkeys(("epsilon", "trust_coefficient", "clip_norm", "rms_rate"), (TINY, np.inf)),
    **dict.fromkeys(("epsilon_1", "epsilon_2", "clip_threshold"), (TINY, np.inf)),
    **dict.fromkeys(("first_estimate", "coefficient"), (TINY, np.inf)),
    "beta_2_decay": (-np.inf, 0),
}


def check_range(name: str, value: float) -> None:
    """Raise ValueError unless `value` is in the range of the hyper-parameter `name`."""
    low, high = RANGES[name]
    if not low <= value < high:
        raise ValueError(f"{name} must satisfy {low} <= {name} < {high}, got {value}")
