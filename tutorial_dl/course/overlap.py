"""Overlap: reduce a layer's gradient while those of the earlier layers are still computed.

    in turn      | forward | backward: layer 3, 2, 1 | reduce 3, 2, 1 | update |
    overlapped   | forward | backward: layer 3, 2, 1 |                | update |
                                       | reduce 3 | reduce 2 | reduce 1 |

The reduction is hidden behind the computation if something else can do it meanwhile: a network
card, or an idle core. Where every core has a rank that computes, the same cores do the same work,
with one synchronisation point per layer instead of one per step. So this is not an option of
`Synchronous`: it is here to be measured (notebook 32, docs/internals.md).

Horovod and PyTorch's DistributedDataParallel (DDP) overlap in buckets of some MB: Li et al., arXiv
2006.15704, section 3.2.3.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from numba_kernels.team.team import Team

from ..replica.base import Batch
from ..replica.dense import DenseReplica
from .measure import in_turns

SECONDS = 60.0  # limit for the reduction of one layer; after it this rank raises TimeoutError


class Overlapped:
    """The gradient of all ranks' samples; a thread reduces it layer by layer. Collective.

    Leaving `with Overlapped(team, replica) as overlapped:` ends the thread.

    Args:
        team: the ranks that train; the thread communicates over a second team of the same ranks
        replica: says when the gradient of a layer is complete; its gradient moves into the window
    """

    def __init__(self, team: Team, replica: DenseReplica):
        self.replica, self._team = replica, team.split(0)
        replica.place(replica.parameters, self._team.empty(replica.gradient.size))
        self._thread = ThreadPoolExecutor(1)

    def gradient(self, batch: Batch) -> float:
        """Fill `replica.gradient` with the mean over ranks; returns this rank's mean loss.

        The batch has this rank's samples: equally many on all ranks, at least one.
        """
        reduced: list[Future] = []

        def ready(first: int, last: int) -> None:
            layer = self.replica.gradient[first:last]
            reduced.append(self._thread.submit(self._team.allreduce, layer, "mean"))

        loss, samples = self.replica.compute_gradient(batch, ready=ready)
        if not samples:
            raise ValueError("a plain mean over ranks needs equal shares, got an empty batch")
        for layer in reduced:
            layer.result(SECONDS)
        return loss

    def __enter__(self) -> Overlapped:
        return self

    def __exit__(self, *error) -> None:
        self._thread.shutdown(wait=not any(error), cancel_futures=True)


def seconds(team: Team, replicas: dict[str, DenseReplica], batch: Batch, rounds: int) -> dict:
    """Time a gradient alone, with an allreduce after it, and overlapped. Collective.

    Each round times all three, so that any disturbance of the machine affects all of them alike.

    Args:
        team: the ranks that take part
        replicas: by name, "alone", "in turn" and "overlapped", each with its own memory
        batch: this rank's samples
        rounds: timed rounds, after 5 that are not counted; the result is the median of each
    """
    with Overlapped(team, replicas["overlapped"]) as overlapped:
        in_turn = replicas["in turn"]
        in_turn.place(in_turn.parameters, team.empty(in_turn.gradient.size))

        def reduce_after():
            in_turn.compute_gradient(batch)
            team.allreduce(in_turn.gradient, "mean")

        calls = {
            "alone": lambda: replicas["alone"].compute_gradient(batch),
            "in turn": reduce_after,
            "overlapped": lambda: overlapped.gradient(batch),
        }
        times = in_turns(calls, rounds + 5, before=team.barrier)
    return {name: float(np.median(of_it[5:])) for name, of_it in times.items()}
