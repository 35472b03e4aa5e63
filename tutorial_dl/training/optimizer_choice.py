"""Which optimizer trains a model: the one asked for, the one it was compiled with, or a default."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from numba_kernels import optimizers
from numba_kernels.optimizers import Optimizer

from ..replica.base import Replica
from ..strategies.base import Strategy


class Choice(NamedTuple):
    """`note` is a line for the user, or empty; the rest is as in Replica's `CompiledOptimizer`."""

    optimizer: Optimizer
    schedule: Callable[[int], float] | None = None
    clip_norm: float | None = None
    note: str = ""

    def tell(self, team) -> None:
        """Rank 0 prints the note."""
        if self.note and team.rank == 0:
            print(f"note: {self.note}", file=sys.stderr, flush=True)


def choose(replica: Replica, strategy: Strategy, asked: Any = None) -> Choice:
    """The optimizer for this model and this strategy.

    Args:
        asked: The name of an optimizer, an Optimizer, or an optimizer of the model's library
            (Keras). None: the one that the model was compiled with, if there is one that the
            strategy can use, else the strategy's default; a strategy that divides one refuses it.

    Raises:
        ValueError: If there is no such optimizer, or the strategy can't train with it.
    """
    if isinstance(asked, str | Optimizer):
        return Choice(optimizers.get(asked))
    brought = replica.own_optimizer(asked)
    if brought is None:
        return Choice(optimizers.get(strategy.default_optimizer if asked is None else asked))
    found = Choice(brought.optimizer, brought.schedule, brought.clip_norm)
    try:
        strategy.check_optimizer(found.optimizer)
    except ValueError as error:
        if asked is not None or (strategy.holding and strategy.holding.stage):
            raise
        default = optimizers.get(strategy.default_optimizer)
        used = f"{default.in_words}, learning rate {default.learning_rate:g}"
        unused = f"{brought.name}, which the model was compiled with"
        return Choice(default, note="" if brought.by_default else (
            f"trained with {used} instead of {unused}: {error}"
        ))  # fmt: skip
    if found.optimizer.undivided:
        words = (
            f"Keras applies {brought.name}, with which the model was compiled, on every rank: "
            "there is no kernel here for it, or for one of its settings"
        )
        found = found._replace(note=words)
    return found
