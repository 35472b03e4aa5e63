"""`Evolutionary`: the fittest sets have children, and nobody waits for a generation to end.

Steady state: each free group gets a child of the present population. When a trial has finished, it
joins the population, and the worst leaves. So the population is always the `POPULATION` best trials
that have finished, and while there are fewer, sets are drawn at random.

    parents    binary tournament: of two drawn members, the fitter one; the fittest 20% are drawn
               twice as often
    crossover  each parameter from one of the two; a number lies between them or a bit beyond
    mutation   each parameter with probability 1 / parameters: a number moves, a category is redrawn

A trial that failed, or whose figure of merit is not a number, counts as worse than all others.
"""

from __future__ import annotations

import numpy as np

from .proposing import Proposing, Seen
from .space import choices_of

POPULATION = 20
FITTEST = 0.2
BEYOND = 0.25  # how far a child's number may lie beyond those of its parents (BLX-alpha)
STEPS = 0.3, 0.1, 0.03  # spreads of a mutation, in parts of the range
TRIES = 20  # for a child that is none of the sets tried before


class Evolutionary(Proposing):
    """A steady-state evolutionary algorithm."""

    population = POPULATION

    def propose(self, seen: Seen) -> dict:
        members = self.members(seen)
        if len(members) < 2 or len(seen.values) + len(seen.pending) < self.population:
            return self.space.random(self.random)
        taken = {tuple(row) for row in (*seen.rows, *seen.pending)}
        for _ in range(TRIES):
            child = self.space.snapped(self.child(seen.rows[members])[None])[0]
            if tuple(child) not in taken:
                break
        return self.space.decode(child)

    def members(self, seen: Seen) -> np.ndarray:
        """The population: indices of the finished trials, fittest first; failed ones are last."""
        return np.lexsort([seen.values, seen.failed])[: self.population]

    def child(self, rows: np.ndarray) -> np.ndarray:
        """A child of two members; rows (population, columns), fittest first."""
        random, space = self.random, self.space
        mother, father = rows[self.tournament(len(rows))], rows[self.tournament(len(rows))]
        child = np.empty(space.columns)
        changes = random.random(len(space.names)) < 1 / len(space.names)
        if not changes.any():
            changes[random.integers(len(changes))] = True
        for (name, one), changed in zip(space, changes, strict=True):
            part = space.slices[name]
            if columns := len(choices_of(one)):
                child[part] = mother[part] if random.random() < 0.5 else father[part]
                if changed:
                    child[part] = random.random(columns)
                continue
            a, b = mother[part][0], father[part][0]
            value = a + (b - a) * random.uniform(-BEYOND, 1 + BEYOND)
            if changed:
                value += random.choice(STEPS) * random.standard_normal()
            child[part] = abs(value) if value < 1 else 2 - value  # reflected into the range
        return np.clip(child, 0, 1)

    def tournament(self, members: int) -> int:
        """The place of a parent in the population, by a binary tournament."""
        tickets = np.r_[np.arange(members), np.arange(int(np.ceil(FITTEST * members)))]
        return int(self.random.choice(tickets, 2, replace=False).min())
