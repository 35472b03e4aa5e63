"""`AtOnce`: one round of several players, all from the same weights, with overlapped reductions.

    one by one   | gradient G | gradient D | reduce, update G | reduce, update D |
    overlapped   | gradient G | gradient D | reduce, update D | update G |
                              | reduce G ..|                      another thread, another team

Every gradient is taken at the weights before the round, so a reduction needs nothing that is
computed after it began. No weights may change before all ranks have all gradients. They have when
the last player's step is done, which needs every rank's part; so the others' updates come after it.
Both ways do the same arithmetic.

Where players take turns, no whole gradient can overlap: the discriminator's needs the generator's
new weights, and the next one of the generator needs the discriminator's. (Only the discriminator's
terms of real samples need no new weights; they are not computed apart.)
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import get_ident

from mpi4py import MPI

from numba_kernels import spans
from numba_kernels.team.team import Team
from numba_kernels.team.windows import share_core

from ..replica.base import Batch
from ..strategies.base import OneModel
from .run import Player


def can_overlap() -> bool:
    """Whether several threads of this process may communicate at the same time."""
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def team_beside(team: Team) -> Team:
    """A team of the same ranks, for a thread beside the one that computes. Collective."""
    own = team.split(0)
    share_core(own)
    return own


class AtOnce:
    """Does rounds. Leaving `with AtOnce(players, overlap) as rounds:` ends its threads.

    Args:
        players: The last one's reduction is done by this thread, those of the others each by a
            thread of its own; so their teams must differ if they overlap.
        overlap: Whether reductions begin before all gradients are computed.
    """

    def __init__(self, players: Sequence[Player], overlap: bool) -> None:
        self.players, self.overlap = players, overlap
        if overlap and len({id(player.team) for player in players}) < len(players):
            raise ValueError("players whose reductions overlap need a team each")
        self._threads = ThreadPoolExecutor(max(1, len(players) - 1), "reductions")

    def round(self, begin, batches: Sequence[Batch]) -> list[tuple[float, int]]:
        """One step of every player with its batch; returns (mean loss, samples) of each.

        `begin(player, batch)` computes a player's gradient and returns (loss, samples) of this
        rank; what it raises ends the other threads' part.
        """
        pairs = list(zip(self.players, batches, strict=True))
        if not self.overlap:
            found = [begin(player, batch) for player, batch in pairs]
            both = zip(self.players, found, strict=True)
            return [player.strategy.end(*its) for player, its in both]
        begun: list[Future] = []
        try:
            for player, batch in pairs[:-1]:
                its = begin(player, batch)
                begun.append(self._threads.submit(_reduced, player.strategy, its))
            done = [self.players[-1].strategy.end(*begin(*pairs[-1]))]
            # All ranks have all gradients now, or this one would still wait for the last player's.
            for player, each in zip(reversed(self.players[:-1]), reversed(begun), strict=True):
                done.append(each.result() or player.strategy.finish())
            return done[::-1]
        except BaseException as error:
            self._give_up(begun, error)
            raise

    def _give_up(self, begun: list[Future], error: BaseException) -> None:
        """End the other threads, so that nobody else uses their teams from now on."""
        for player in self.players[:-1]:
            player.team.ends_with = error
        for each in begun:
            each.exception()
        for player in self.players[:-1]:
            player.team.ends_with = None

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *error) -> None:
        self._threads.shutdown()


def _reduced(strategy: OneModel, its: tuple[float, int]) -> tuple[float, int] | None:
    """In another thread: `OneModel.reduce`."""
    spans.beside.add(get_ident())  # a timeline shows what this thread does
    try:
        return strategy.reduce(*its)
    finally:
        spans.beside.discard(get_ident())
