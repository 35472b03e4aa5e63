"""Which optimizer trains a model: the one asked for, the one it was compiled with, or a default."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from numba_kernels import optimizers
from numba_kernels.optimizers import Optimizer
from numba_kernels.optimizers.base import check_range

from ..config import OPTIONS, RunConfig
from ..replica.base import Replica
from ..replica.gan import Game
from ..strategies.base import Strategy

# Options that replace what a model was compiled with
OF_RULES = ("momentum", "weight_decay", "beta_1", "beta_2")  # hyper-parameters
OF_SCHEDULE = ("schedule", "warm_up", "batch_rule")
REPLACING = ("optimizer", "learning_rate", *OF_RULES, "clip_norm", *OF_SCHEDULE)


class Choice(NamedTuple):
    """`note` is a line for the user, or empty; the rest is as in Replica's `CompiledOptimizer`."""

    optimizer: Optimizer
    schedule: Callable[[int], float] | None = None
    clip_norm: float | None = None
    note: str = ""

    def print_note(self, team) -> None:
        """Rank 0 prints the note."""
        if self.note and team.rank == 0:
            print(f"note: {self.note}", file=sys.stderr, flush=True)


def choose(replica: Replica, strategy: Strategy, asked: Any = None) -> Choice:
    """The optimizer for this model and this strategy.

    Args:
        asked: The name of an optimizer, an Optimizer, or an optimizer of the model's library
            (Keras). None: the one that the model was compiled with, if there is one that the
            strategy can use, else the strategy's default; what has no kernel is refused, though.
            A RunConfig: what its options say, which may change the model's own.

    Raises:
        ValueError: If there is no such optimizer, or the strategy can't train with it.
    """
    if isinstance(asked, RunConfig):
        return changed(choose(replica, strategy, asked.optimizer.optimizer), asked, replica)
    if isinstance(asked, str | Optimizer):
        return Choice(optimizers.get(asked))
    brought = replica.own_optimizer(asked)
    if brought is None:
        return Choice(optimizers.get(strategy.default_optimizer if asked is None else asked))
    found = Choice(brought.optimizer, brought.schedule, brought.clip_norm)
    try:
        strategy.check_optimizer(found.optimizer)
    except ValueError as error:
        if asked is not None or found.optimizer.undivided:
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


def changed(found: Choice, config: RunConfig, replica: Replica) -> Choice:
    """`found` with what the options of a run replace; the note says so."""
    asked = config.optimizer
    optimizer, schedule = found.optimizer, found.schedule
    replaced = _replaced(config)
    over = [name for name in OF_SCHEDULE if name in replaced]
    if over and schedule is not None and asked.learning_rate is None:
        raise ValueError(
            f"{OPTIONS[over[0]].flag} with a model that was compiled with a schedule: give "
            "--learning-rate, too, to replace it, or leave the option out"
        )
    if asked.learning_rate is not None:
        optimizer, schedule = optimizer.at_rate(asked.learning_rate), None
    optimizer = adjusted(config, optimizer)
    note, compiled = found.note, _compiled(replica) if replaced else None
    if compiled is not None and not compiled.by_default:
        flags = " and ".join(OPTIONS[name].flag for name in replaced)
        given = (
            f"trained with {optimizer.in_words}, learning rate {optimizer.learning_rate:g} "
            f"({flags}); the model was compiled with {compiled.name}, learning rate "
            f"{compiled.optimizer.learning_rate:g}"
        )
        note = f"{note}; {given}" if note else given
    return found._replace(optimizer=optimizer, schedule=schedule, note=note)


def _replaced(config: RunConfig) -> list[str]:
    """The names of the options that replace what a model was compiled with."""
    values = config.values()
    taken = config.strategy.takes  # some rules have a momentum of their own
    return [n for n in REPLACING if values[n] != OPTIONS[n].default and n not in taken]


def _compiled(replica: Replica) -> Any:
    """What the model was compiled with; None also if that could not be used."""
    try:
        return replica.own_optimizer()
    except ValueError:
        return None


def adjusted(config: RunConfig, optimizer: Optimizer) -> Optimizer:
    """`optimizer` with the hyper-parameters that the options ask for, but for the rate."""
    for name in OF_RULES:
        value = getattr(config.optimizer, name)
        if value is not None and name not in config.strategy.takes:
            optimizer = _with(optimizer, name, value)
    return optimizer


def _with(optimizer: Optimizer, name: str, value: float) -> Optimizer:
    """`optimizer` with another hyper-parameter; ValueError if it has no such one."""
    if hasattr(optimizer, name):
        return replace(optimizer, **{name: value})
    if optimizer.undivided:
        raise ValueError(
            f"{OPTIONS[name].flag} does not change {optimizer.in_words}, with which the model was "
            "compiled: give --optimizer, too"
        )
    others = sorted(n for n in optimizers.NAMES if hasattr(optimizers.get(n), name))
    raise ValueError(
        f"{OPTIONS[name].flag} {value:g} with optimizer {optimizer.name!r}, which has none; use "
        f"{', '.join(others)}"
    )


def optimizers_of(game: Game, optimizer: Any = None, rates: Sequence[float] | None = None) -> tuple:
    """The optimizers of generator and discriminator: those asked for, or those of the game."""
    rules = game.rules
    given = optimizers.get(rules.optimizer if optimizer is None else optimizer)
    if optimizer is None and hasattr(given, "beta_1"):
        given = replace(given, beta_1=rules.momentum)
    asked = rules.rates if rates is None else rates
    return tuple(given.at_rate(check_range("learning_rate", float(one)) or one) for one in asked)
