"""Population based training: groups that do badly copy groups that do well, while they train.

    each group is a member of the population, with a set of values of its own
    after every `population` epochs:
        the worst fifth:   weights and optimizer state <- those of one of the best fifth
                           values <- its values, each times 0.8 or 1.2

So what a search finds is a schedule of values, not one set, and it costs as much as training the
population once. All members have as many ranks, so rank i of a group gets what it needs from rank
i of another, from memory to memory. What changes in training are hyper-parameters of the
optimizer; sets to begin with are the sampler's.

Jaderberg et al., arXiv 1711.09846: truncation selection, and perturbing (section 4.1). There
members go on at different times; here they compare themselves after equally many epochs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, IntDistribution

from numba_kernels.errors import PeerError, TeamError
from numba_kernels.team.bytes import broadcast, receive, send

from .. import data as datasets
from ..config import OutputConfig
from ..interop.layers import synchronised
from ..runtime.errors import NotFinite
from ..runtime.handing_out import opened
from ..strategies.base import OneModel
from ..training.optimizer_choice import adjusted
from ..training.setup import prepare
from .cell import REGROUP
from .coordinator import Outcome
from .merit import merit_of
from .options import config_of
from .search import Search
from .space import Space

SHARE = 5  # one in so many is bad, and as many are good
FACTORS = (0.8, 1.2)


class Member:
    """The ranks of a group, and what they train."""

    def __init__(self, search: Search, team, values: Mapping[str, Any]):
        self.team, self.base = team, replace(search.base, output=OutputConfig(quiet=True))
        dataset = opened(datasets.load(self.base.data.data, **self.base.data.files), team)
        config = config_of(self.base, values)
        self.trainer = prepare(config, team, synchronised, dataset)
        self.merit, self.strategy = merit_of(search.merits[0]), self.trainer.strategy
        if not isinstance(self.strategy, OneModel) or self.trainer.schedule is not None:
            raise ValueError(
                "--population changes the optimizer of strategy 'synchronous' or 'serial', which "
                "must have no schedule of the model's"
            )

    @property
    def states(self) -> list:
        """The optimizer's states: the strategy's, which counts updates, and those of parts."""
        state = self.strategy.state
        return [state, *(one for one in self.strategy.states if one is not state)]

    def train(self, epochs: int) -> float:
        """The figure of merit after so many more epochs; NaN if training failed."""
        try:
            self.trainer.fit(epochs)
            return float(self.merit(self.trainer))
        except (NotFinite, PeerError) as error:
            error.__traceback__ = None
            self.team.abort(error)
            self.team.recover(REGROUP)
            return np.nan

    def vectors(self) -> list[np.ndarray]:
        """What another member copies: weights, running averages, numbers, statistics."""
        counts = [one.step for one in self.states], self.strategy.shown
        slots = [one.slots for one in self.states]
        replica = self.trainer.replica
        return [replica.parameters, *slots, np.hstack(counts), np.array(replica.state)]

    def give(self, world, to: int) -> None:
        for vector in self.vectors():
            send(world, np.ascontiguousarray(vector).view(np.uint8).ravel(), to)

    def take(self, world, source: int) -> None:
        """Copy what rank `source` gives."""
        got = []
        for vector in (own := self.vectors()):
            one = receive(world, np.empty(vector.nbytes, np.uint8), source)
            got.append(one.view(vector.dtype).reshape(vector.shape))
        *arrays, (*steps, shown), statistics = got
        for vector, one in zip(own, arrays, strict=False):
            vector[...] = one
        for state, step in zip(self.states, steps, strict=True):
            state.step = int(step)
        self.strategy.shown = bool(shown)
        if statistics.size:
            self.trainer.replica.state = statistics

    def use(self, values: Mapping[str, Any]) -> None:
        """Go on with these values."""
        config = config_of(self.base, values)
        rule = adjusted(config, self.strategy.optimizer)
        if config.optimizer.learning_rate is not None:
            rule = rule.at_rate(config.optimizer.learning_rate)
        self.strategy.optimizer = rule


def perturbed(space: Space, values: Mapping[str, Any], dice: np.random.Generator) -> dict[str, Any]:
    """The values, each times 0.8 or 1.2 within its range; another category at random."""
    found = {}
    for name, one in space:
        if isinstance(one, CategoricalDistribution):
            found[name] = one.choices[dice.integers(len(one.choices))]
            continue
        value = min(max(values[name] * float(dice.choice(FACTORS)), one.low), one.high)
        found[name] = round(value) if isinstance(one, IntDistribution) else value
    return found


def meet(team, collective: Callable[[], Any]) -> Any:
    """What `collective` returns; None if a training has failed: all ranks have met even so.

    A training that fails aborts all teams of its ranks, also that of the whole population.
    """
    try:
        return collective()
    except (PeerError, TeamError) as error:
        try:
            team.recover(None)
        except PeerError:  # a process has ended
            raise error from None
        return None


def run(search: Search, team, announce) -> tuple | None:
    """Train a population on the ranks of `team`. Collective; (study, outcome) on rank 0."""
    each = search.ranks_each(team.size)
    members = search.members(each, 1)
    study = search.study() if team.rank == 0 else None
    asked = [study.ask() for _ in members] if study is not None else []
    sets = broadcast(team, [values for _, values in asked])
    mine = next((i for i, ranks in enumerate(members) if team.rank in ranks), None)
    own = team.split(len(members) if mine is None else mine)
    member = None if mine is None else Member(search, own, sets[mine])
    began, spans = time.monotonic(), []
    dice = np.random.default_rng(search.base.data.seed)  # the same on all ranks
    sign, epochs = -1.0 if search.higher[0] else 1.0, search.base.schedule.epochs
    paths = [[{"epoch": 0, **values}] for values in sets]
    done, figures = 0, np.full(len(members), np.nan)
    while done < epochs:
        more = min(search.population, epochs - done)
        start = time.monotonic() - began
        value = np.nan if member is None else member.train(more)
        row = np.array([value, start, time.monotonic() - began])
        while (table := meet(team, lambda row=row: team.allgather(row))) is None:
            pass
        table = np.array([table.reshape(team.size, 3)[ranks[0]] for ranks in members])
        figures, done = table[:, 0], done + more
        spans += [(i, i, 0, *table[i, 1:].tolist()) for i in range(len(members))]
        if team.rank == 0:
            announce(f"epoch {done}: " + ", ".join(f"{one:.4g}" for one in figures), None)
        if done == epochs:
            break
        order = np.argsort(np.where(np.isfinite(figures), sign * figures, np.inf), kind="stable")
        some = max(1, len(members) // SHARE)
        for bad in order[-some:].tolist():
            good = int(dice.choice(order[:some]))
            sets[bad] = perturbed(search.space, sets[good], dice)
            paths[bad] = [*paths[good], {"epoch": done, "from": good, **sets[bad]}]
            if mine == good:
                member.give(team, members[bad][members[good].index(team.rank)])
            if mine == bad:
                member.take(team, members[good][members[bad].index(team.rank)])
                own.barrier()
                member.use(sets[bad])
        meet(team, team.barrier)  # from here on, a training may fail again
    if study is None:
        return None
    seconds = time.monotonic() - began
    for (trial, _), value, path in zip(asked, figures, paths, strict=True):
        state = "complete" if np.isfinite(value) else "failed"
        about = {"schedule": path, "seconds": seconds, "ranks": each}
        study.tell(trial, float(value) if state == "complete" else None, state, **about)
    used = sum(end - start for *_, start, end in spans) / (len(members) * seconds)
    return study, Outcome(seconds, used, len(members), [], None, spans)
