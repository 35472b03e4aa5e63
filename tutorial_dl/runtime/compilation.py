"""How TensorFlow computes a Keras model: as a graph, or compiled by XLA. All ranks choose alike.

Which is faster depends on the network by a factor of two either way. So before the first step each
rank measures both on a batch of its own, and the slowest rank decides. That takes a few seconds,
most of them for XLA's compiler; so XLA is tried only if the run will compute for long enough.
Checkpoints hold the choice, because the two ways differ in rounding.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..data.dataset import Data, share
from ..data.streams import Stream
from ..replica.base import compiled

WAYS = ("auto", "graph", "xla")
# XLA is tried from so many calls on, if TensorFlow's graph takes so many seconds for them.
CALLS, WORTH = 50, 10.0
BETTER = 0.95  # of the graph's time that XLA may take


def check_way(way: str, replica) -> None:
    """Raise ValueError unless this model can be computed that way."""
    if way not in WAYS:
        raise ValueError(f"unknown compile {way!r}; choose one of {', '.join(WAYS)}")
    if way == "xla" and replica.traits.refuses_xla:
        raise ValueError(f"compile='xla' does not fit this model: {replica.traits.refuses_xla}")
    if way == "graph" and replica.traits.compiles and "eager" in compiled(replica).values():
        raise ValueError(f"compile='graph' does not fit this model: {replica.traits.refuses_xla}")


def choose(run, loop, epochs: int, tell: bool) -> None:
    """Choose for each player of the run how `epochs` more epochs are computed. Collective.

    What has been chosen stays, also in a run that resumes another. `tell`: whether rank 0 prints
    what it has measured.
    """
    if run.lost_ranks:
        return
    for player in run.players:
        if not player.replica.traits.compiles:
            continue
        for what, samples, count in _steps(run, loop, epochs):
            way = run.compile if run.compile != "auto" else run.compiled.get((player.name, what))
            if not _all(run.team, way is not None):
                way = _fastest(run, player, what, samples, count, tell)
            if way is not None:  # else a later call of `fit` may be longer
                run.compiled[player.name, what] = way
                if compiled(player.replica)[what] != way:
                    player.replica.compilation.choose(what, way, samples)


def _fastest(run, player, what: str, samples: int, count: int | None, tell: bool) -> str | None:
    """ "graph" or "xla"; None: the run is too short to find out."""
    replica, team = player.replica, run.team
    if not _all(team, bool(replica.compilation.may_choose and count and count >= CALLS)):
        return None
    batch = _batch(run, player, what, samples)
    once = _slowest(team, replica.compilation.seconds(what, "graph", batch, once=True))
    if once * count < WORTH:
        return None
    way, graph, xla = faster(team, replica, what, batch)
    if tell and team.rank == 0:
        print(run.label(player, _words(what, way, graph, xla), ": "), file=sys.stderr, flush=True)
    return way


def faster(team, replica, what: str, batch: Any) -> tuple[str, float, float]:
    """Measure both ways on each rank's batch: the faster, seconds by graph, and by XLA. Collective.

    The seconds are those of the slowest rank; by XLA they are infinite if a rank can't use it.
    """
    graph = _slowest(team, replica.compilation.seconds(what, "graph", batch))
    xla = _slowest(team, replica.compilation.seconds(what, "xla", batch))
    return "xla" if xla < BETTER * graph else "graph", graph, xla


def _all(team, yes: bool) -> bool:
    return bool(team.allreduce(np.array([int(yes)]), "min")[0])


def _steps(run, loop, epochs: int) -> list[tuple[str, int, int | None]]:
    """What this rank computes: (what, samples at once, how often; None: unknown)."""
    rank, ranks = loop.shard(run.strategy.sharers)
    devices = run.layout.devices if ranks == 1 else 1
    round_size = run.batches.batch_size
    mine = share(round_size, rank, ranks) if devices == 1 else share(round_size, 0, devices)
    pieces = share(mine.stop - mine.start, 0, run.accumulate)
    rounds = run.batches.rounds
    if rounds is not None:
        rounds = epochs * rounds * run.accumulate // (1 if ranks > 1 else run.layout.workers or 1)
    found = [("gradient", pieces.stop - pieces.start, rounds)]
    validation = run.dataset.validation
    if validation is not None and not isinstance(validation, Stream):
        part = share(len(validation), run.team.rank, run.team.size)
        size = min(run.validation_batch_size, part.stop - part.start)
        found.append(("evaluation", size, epochs * -(-(part.stop - part.start) // max(size, 1))))
    return found


def _batch(run, player, what: str, samples: int) -> Any:
    """So many samples, repeated if the data that every rank has are fewer."""
    data = run.dataset.train if what == "gradient" else run.dataset.validation
    few = Data(*player.select(data.take(slice(0, samples)), run))
    return few.take(np.arange(samples) % max(len(few), 1)) if len(few) else few.take(slice(0, 0))


def _slowest(team, seconds: float | None) -> float:
    """The most that a rank needs; infinity if one of them can't."""
    mine = np.array([np.inf if seconds is None else seconds])
    return float(team.allreduce(mine, "max")[0])


def _words(what: str, way: str, graph: float, xla: float) -> str:
    name = {"gradient": "the gradient", "evaluation": "the evaluation"}[what]
    times = f"{1e3 * xla:.3g} ms per batch by XLA, {1e3 * graph:.3g} ms by TensorFlow's graph"
    if way == "xla":
        return f"{name} is compiled by XLA: {times}"
    if np.isfinite(xla):
        return f"{name} is not compiled by XLA: {times}"
    return f"{name} is not compiled by XLA, which can't compile it or finds something else"
