"""A game in a Run: two players in turn, or both as one model where only one can be trained.

`players(game, ...)` makes the players of a Run in step: each has its own strategy, optimizer and
learning rate. The generator makes a step in every k-th round, the discriminator in each.

`Together(game)` is one Replica of both: its gradient is that of both players at once, from the
same weights. A rule with a master, which trains one model, trains a game that way. (Steps at once
spiral outwards where steps in turn do not: Mescheder et al., arXiv 1801.04406.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from numba_kernels.optimizers import Optimizer

from ..replica.base import Batch, Replica, Segment, Traits
from ..replica.gan import ALWAYS, Game
from ..replica.vectors import Vectors
from ..strategies.base import Strategy
from .run import Player, Run

GENERATOR, DISCRIMINATOR = "generator", "discriminator"
LINE = 16  # elements to which the second player's weights are aligned: at least 64 bytes


@dataclass
class GanPlayer(Player):
    """A player of `game`; `every`: it makes a step in each so many rounds of the run."""

    game: Game | None = None
    every: int = 1

    def select(self, batch: Batch, run: Run) -> Batch:
        (_, indices), *_ = batch
        epoch = len(run.history.epochs)
        if len(indices) and indices[0] >= len(run.dataset.train):
            epoch = ALWAYS  # validation: noise that does not change
        elif self.every > 1 and (run.steps // self.strategy.updates_a_step + 1) % self.every:
            batch = tuple(_empty(one) for one in batch)
        return self.game.round(batch, run.batches.seed, epoch), ()


def _empty(arrays):
    return tuple(_empty(one) for one in arrays) if isinstance(arrays, tuple) else arrays[:0]


def players(
    game: Game, strategies: tuple[Strategy, Strategy], optimizers: tuple[Optimizer, Optimizer]
) -> list[GanPlayer]:
    """The generator and the discriminator, for Run(players(...), numbered(dataset), ...)."""
    names, every = (GENERATOR, DISCRIMINATOR), (game.rules.discriminator_steps, 1)
    rows = zip(game.sides, strategies, optimizers, names, every, strict=True)
    return [
        GanPlayer(side, strategy, optimizer, strategy.team, None, name, game, k)
        for side, strategy, optimizer, name, k in rows
    ]


class Together(Vectors):
    """Both players of a game as one Replica; a batch is ((x, index), y) of numbered data.

    `parameters` are the generator's, then the discriminator's, from a multiple of 64 bytes on. The
    gradient's parts are those of each player's own loss. Its noise depends on (seed, how many
    batches this rank has computed, index).
    """

    def __init__(self, game: Game, seed: int = 0) -> None:
        if game.rules.discriminator_steps > 1:
            raise ValueError(
                "a strategy with a master trains both players at once: discriminator_steps must be "
                f"1, got {game.rules.discriminator_steps}; strategies 'synchronous', 'serial' and "
                "'hogwild' take others"
            )
        self.game, self.seed, self._count = game, seed, 0
        self._second = -(-game.generator.parameters.size // LINE) * LINE
        segments = [
            Segment(f"{name}/{one.name}", one.offset + first, one.shape)
            for name, side, first in zip(
                (GENERATOR, DISCRIMINATOR), game.sides, (0, self._second), strict=True
            )
            for one in side.segments
        ]
        self.traits = Traits()  # it can't swap
        initial = [side.parameters.copy() for side in game.sides]
        super().__init__(tuple(segments), game.generator.parameters.dtype)
        for part, values in zip(self._parts(self.parameters), initial, strict=True):
            part[:] = values

    def _parts(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sizes = [side.parameters.size for side in self.game.sides]
        return vector[: sizes[0]], vector[self._second : self._second + sizes[1]]

    def _hold(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        super()._hold(parameters, gradient)
        parts = zip(self.game.sides, self._parts(parameters), self._parts(gradient), strict=True)
        for side, weights, its_gradient in parts:
            side._hold(weights, its_gradient)

    def compute_gradient(self, batch: Batch) -> tuple[float, int]:
        """Both gradients; returns the sum of both losses."""
        one = self.game.round(batch, self.seed, self._count)
        self._count += 1
        losses = [side.compute_gradient((one, ()))[0] for side in self.game.sides]
        return sum(losses), len(one)

    def measure(self, batches: Iterable[Batch]) -> dict[str, float]:
        rounds = [(self.game.round(batch, self.seed, ALWAYS), ()) for batch in batches]
        found = [side.measure(rounds) for side in self.game.sides]
        named = {
            f"{name}_{key}": value
            for name, sums in zip((GENERATOR, DISCRIMINATOR), found, strict=True)
            for key, value in sums.items()
            if key != "samples"
        }
        loss = sum(sums.get("loss", 0.0) for sums in found)
        return {"loss": loss} | named | {"samples": found[0]["samples"]}


def game_of(replica: Replica | None) -> Game | None:
    """The game that a replica belongs to, or None."""
    return getattr(replica, "game", None)
