"""`AtOnce`: one round of several players, all from the same weights, with overlapped reductions.

    one by one   | gradient G | gradient D | reduce, update G | reduce, update D |
    overlapped   | gradient G | gradient D | reduce, update D | reduce, update G |
                              | reduce G, on another team ... |

Every gradient is taken at the weights before the round, so a reduction needs nothing that is
computed after it began. When overlapped, it begins as soon as its gradient is there: the rank tells
the others, or posts messages to them, and goes on without waiting (`Step.post`). While the next
gradient is computed, MPI and the network card move what they can without a rank's help; the rest
moves while the rank waits in the next reduction. Nothing is done twice, and no thread is needed.

No weights may change before all ranks have all gradients. They have when the last player's step is
done, which needs every rank's part; so the others' updates come after it. Both ways do the same
arithmetic.

Where players take turns, no whole gradient can overlap: the discriminator's needs the generator's
new weights, and the next one of the generator needs the discriminator's. (Only the discriminator's
terms of real samples need no new weights; they are not computed apart.)
"""

from __future__ import annotations

from collections.abc import Sequence

from ..replica.base import Batch
from .run import Player


class AtOnce:
    """Does rounds.

    Args:
        players: If their reductions overlap, each needs another team
            (numba_kernels/team/twin.py).
        overlap: Whether reductions begin before all gradients are computed.
    """

    def __init__(self, players: Sequence[Player], overlap: bool) -> None:
        self.players, self.overlap = players, overlap
        if overlap and len({id(player.team) for player in players}) < len(players):
            raise ValueError("players whose reductions overlap need a team each")

    def round(self, begin, batches: Sequence[Batch]) -> list[tuple[float, int]]:
        """One step of every player with its batch; returns (mean loss, samples) of each.

        `begin(player, batch)` computes a player's gradient and returns (loss, samples) of this
        rank.
        """
        pairs = list(zip(self.players, batches, strict=True))
        if not self.overlap:
            found = [begin(player, batch) for player, batch in pairs]
            both = zip(self.players, found, strict=True)
            return [player.strategy.end(*its) for player, its in both]
        *others, last = pairs
        try:
            posted = [player.strategy.post(*begin(player, batch)) for player, batch in others]
            done = [last[0].strategy.end(*begin(*last))]
            # All ranks have all gradients now, or this one would still wait for the last player's.
            for (player, _), skipped in zip(reversed(others), reversed(posted), strict=True):
                done.append(skipped or player.strategy.complete())
            return done[::-1]
        except BaseException as error:
            for player, _ in others:  # what they have begun is over, on all ranks
                player.team.abort(error, heard=True)
            raise
