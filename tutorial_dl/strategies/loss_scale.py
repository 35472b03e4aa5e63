"""Loss scaling for training in float16, so that small gradients do not become zero.

float16 has 5 bits of exponent: numbers below 6e-8 become zero, numbers above 65504 infinite.
Gradients are often that small. So the loss is multiplied by a scale S, and with it every gradient
on its way back through the layers; the gradient of the weights, in float32, is divided by S again.
The result is the same gradient, computed from numbers within range.

The largest possible S is not known in advance. Dynamic scaling searches for it: after
`growth_steps` good steps S is doubled; when a gradient is not finite, the step is skipped and S is
halved. All ranks share one S: one rank's overflow skips the step on all of them. (Where each
rank makes updates of its own, as in Hogwild, it has its own S. bfloat16 has the exponents of
float32 and needs no scaling.)

The rule is that of keras.optimizers.LossScaleOptimizer; Micikevicius et al., arXiv 1710.03740.
"""

from math import isfinite, log2

import numpy as np

from ..replica.base import Replica

FIRST, GROWTH_STEPS = 2.0**15, 2000  # as Keras has them
LEAST = 2.0**-14  # below this scale, an infinite gradient has another cause


class LossScale:
    """The scale of the next step, and the rule that changes it.

    It starts at `scale`, a power of 2, which causes no rounding, and is doubled after
    `growth_steps` good steps in a row. If it is not `dynamic`, it is fixed, and a gradient that is
    not finite is an error.
    """

    def __init__(
        self, scale: float = FIRST, growth_steps: int = GROWTH_STEPS, dynamic: bool = True
    ):
        if not (isfinite(scale) and scale > 0 and log2(scale).is_integer()):
            raise ValueError(f"loss scale must be a power of 2, got {scale}")
        if growth_steps < 1:
            raise ValueError(f"growth_steps must be at least 1, got {growth_steps}")
        self.scale, self.growth_steps, self.dynamic = float(scale), growth_steps, dynamic
        self.good = 0  # steps since it changed
        self.settings = scale, growth_steps, dynamic  # equal on all ranks, as the scale need not be

    @property
    def values(self) -> list[float]:
        """[scale, good steps since it changed], for checkpoints; can be assigned."""
        return [self.scale, float(self.good)]

    @values.setter
    def values(self, values) -> None:
        self.scale, self.good = float(values[0]), int(values[1])

    def update(self, finite: bool) -> None:
        """Call after a step with whether the gradients of all ranks that share S were finite."""
        if not self.dynamic:
            return
        if not finite:
            self.scale, self.good = self.scale / 2, 0
            if self.scale < LEAST:
                raise FloatingPointError(
                    f"the gradient is not finite, not even at a loss scale of {2 * self.scale}"
                )
        elif self.good == self.growth_steps - 1:
            self.scale, self.good = self.scale * 2, 0
        else:
            self.good += 1

    def __repr__(self) -> str:
        return f"LossScale({self.scale:g}{'' if self.dynamic else ', fixed'})"


def loss_scale_of(given, replica: Replica) -> LossScale | None:
    """The LossScale for a Trainer's argument `loss_scale`.

    It may be "auto" ("dynamic" for a model that computes in float16, else None), "dynamic", a
    number (fixed), a LossScale, or None. Anything else, and a replica that can't scale its loss,
    raises ValueError.
    """
    if isinstance(given, str) and given == "auto":
        given = "dynamic" if replica.traits.computes_in_float16 else None
    if given is None:
        return None
    if not replica.traits.scales_loss and replica.holding and replica.holding.stage:
        raise ValueError(
            f"loss scale {given!r}: shard 2 and 3 compute in the precision of the weights, which "
            "needs none; use shard 1 with half precision"
        )
    if not replica.traits.scales_loss:
        raise ValueError(f"loss scale {given!r}: only Keras models support a loss scale")
    if isinstance(given, LossScale):
        return given
    if given == "dynamic":
        return LossScale()
    if isinstance(given, int | float | np.number) and not isinstance(given, bool):
        return LossScale(given, dynamic=False)
    raise ValueError(f"loss scale must be 'auto', 'dynamic', a power of 2 or None, got {given!r}")
